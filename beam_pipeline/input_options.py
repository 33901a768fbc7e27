"""The options that say what is read: the same for every verb that reads a corpus. Imports nothing heavy."""

from __future__ import annotations

import argparse
import re
from dataclasses import asdict, dataclass
from decimal import Decimal, InvalidOperation

from beam_pipeline.errors import UsageError

INPUT_FORMATS = ("auto", "text", "jsonl", "parquet")
DOCUMENTS = ("line", "paragraph", "file")

_MOST_REPEATS = 1000


@dataclass(frozen=True)
class MixItem:
    """One item of `--mix`: files, and how often their documents are taken.

    Attributes:
      pattern: a path or glob.
      repeats: how often every document is taken.
      share: of a further repeat only this share of the documents is taken, from 0 up to 1, by a seeded hash.
    """

    pattern: str
    repeats: int
    share: float


@dataclass(frozen=True)
class DatasetConfig:
    """A Hugging Face dataset, as the `datasets` library knows it. See the options `--dataset_*`."""

    name: str
    config: str | None = None
    split: str = "train"
    revision: str | None = None
    cache: str | None = None


@dataclass(frozen=True)
class InputConfig:
    """What is read. See the options of the same names for each field.

    Attributes:
      input, mix, dataset: just one of them says what is read.
      seed: decides which documents a mixture's shares take.
    """

    input: tuple[str, ...] = ()
    mix: tuple[MixItem, ...] = ()
    dataset: DatasetConfig | None = None
    input_format: str = "auto"
    document: str = "line"
    text_key: str = "text"
    unit_bytes: int = 32 << 20
    seed: int = 0

    def identity(self) -> dict:
        """The options that decide which documents there are. Where the files lie is said by the list of inputs."""
        mix = sorted([item.pattern, item.repeats, item.share] for item in self.mix)
        dataset = asdict(self.dataset) if self.dataset else None
        if dataset:
            del dataset["cache"]
        return {
            "input_format": self.input_format,
            "document": self.document,
            "text_key": self.text_key,
            "mix": mix,
            "dataset": dataset,
        }


def add_input_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `InputConfig`."""
    group = parser.add_argument_group("input", "one of --input, --mix and --dataset_name is needed")
    what = group.add_mutually_exclusive_group(required=True)
    what.add_argument("--input", nargs="+", metavar="GLOB", help="files, local or gs://; globs are fine")
    what.add_argument(
        "--mix",
        metavar="GLOB*WEIGHT,…",
        help="files with weights, e.g. 'books/*.jsonl*2.5,web.txt.gz*0.5': whole repeats, and a seeded share of the "
        "documents",
    )
    what.add_argument(
        "--dataset_name",
        metavar="NAME",
        help="a Hugging Face dataset: its name on the hub, or a folder that load_dataset or load_from_disk reads",
    )
    add = group.add_argument
    add("--dataset_config", metavar="NAME", help="the dataset's configuration, where it has several")
    add(
        "--dataset_split",
        metavar="SPLIT",
        help="which split of the dataset is read, also 'train[:10%%]' or 'train+validation' (default: as --split, or "
        "train)",
    )
    add("--dataset_revision", metavar="REVISION", help="the dataset's branch, tag or commit on the hub")
    add(
        "--dataset_cache",
        metavar="DIR",
        help="where the prepared dataset is kept; must be gs:// or the like where the workers are other machines "
        "(default: the cache of the datasets library)",
    )
    add(
        "--input_format",
        choices=INPUT_FORMATS,
        default="auto",
        help="auto goes by each file's extension (.jsonl, .ndjson, .json, .parquet), others are text, and refuses "
        ".csv, .tsv and binary files, which text reads as lines; .gz, .bz2 and .zst are decompressed (default: auto)",
    )
    add(
        "--document",
        choices=DOCUMENTS,
        default="line",
        help="text: what a document is: a line, a paragraph (between blank lines) or a whole file (default: line)",
    )
    add(
        "--text_key",
        default="text",
        metavar="KEY",
        help="jsonl, parquet and datasets: the key or column of a document's text (default: text)",
    )
    add(
        "--unit_bytes", type=int, default=32 << 20, metavar="N", help="bytes in a work unit (default: 32 MiB)"
    )


def input_config(args: argparse.Namespace, *, split: str = "train") -> InputConfig:
    """The config of the parsed options.

    Args:
      args: with the options of `add_input_options` and `--seed`.
      split: the dataset's split where no `--dataset_split` names one.

    Raises:
      UsageError: where values are wrong or do not fit together.
    """
    if args.unit_bytes < 1:
        raise UsageError(f"--unit_bytes {args.unit_bytes}: must be at least 1")
    return InputConfig(
        input=tuple(args.input or ()),
        mix=parse_mix(args.mix) if args.mix is not None else (),
        dataset=_dataset(args, split),
        input_format=args.input_format,
        document=args.document,
        text_key=args.text_key,
        unit_bytes=args.unit_bytes,
        seed=args.seed,
    )


def parse_mix(text: str) -> tuple[MixItem, ...]:
    """The items of `--mix`. The weight is what follows an item's last `*`; globs may hold others.

    Raises:
      UsageError: where an item has no weight, or none that can be.
    """
    items = []
    for item in text.split(","):
        pattern, _, number = item.strip().rpartition("*")
        try:
            weight = Decimal(number)
        except InvalidOperation:
            weight = Decimal(0)
        if not pattern or not weight.is_finite() or not 0 < weight <= _MOST_REPEATS:
            raise UsageError(
                f"--mix {text}: {item!r} is not GLOB*WEIGHT with a weight above 0 and up to {_MOST_REPEATS}; "
                "every item has one, e.g. 'a.jsonl*1,b/*.txt*0.5'"
            )
        items.append(MixItem(pattern, int(weight), float(weight % 1)))
    return tuple(items)


def _dataset(args: argparse.Namespace, split: str) -> DatasetConfig | None:
    if args.dataset_name is None:
        for name in ("config", "split", "revision", "cache"):
            if getattr(args, f"dataset_{name}") is not None:
                raise UsageError(f"--dataset_{name} goes with --dataset_name, which is not given")
        return None
    for name, default in (("input_format", "auto"), ("document", "line")):
        if getattr(args, name) != default:
            raise UsageError(
                f"--{name} {getattr(args, name)}: a dataset's documents are the rows of a table; leave it out"
            )
    if args.dataset_split is None and not re.fullmatch(r"\w+(\.\w+)*", split):
        raise UsageError(
            f"--split {split}: names the split that is written, too; use --dataset_split '{split}' --split NAME"
        )
    return DatasetConfig(
        name=args.dataset_name,
        config=args.dataset_config,
        split=args.dataset_split or split,
        revision=args.dataset_revision,
        cache=args.dataset_cache,
    )
