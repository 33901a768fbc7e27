"""The options that specify the input. All verbs that read a corpus share them. Nothing heavy is imported here."""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, Literal, NamedTuple

from beam_pipeline.options.option_fields import Options, option
from beam_pipeline.support.errors import UsageError
from tokenmill_reader.format.json_form import COUNT

_MAX_REPEATS = 1000

# Encodings in which the meaning of a byte depends on all previous ones, or that encode something other than characters.
_STATEFUL = (
    *(f"iso2022_{kind}" for kind in ("jp", "jp_1", "jp_2", "jp_2004", "jp_3", "jp_ext", "kr")),
    *("hz", "utf-7", "unicode-escape", "raw-unicode-escape", "punycode", "idna", "undefined"),
)

Document = Literal["auto", "line", "paragraph", "file"]


class MixItem(NamedTuple):
    """One item of `--mix`: files and their weight."""

    pattern: str
    """A path or glob."""
    repeats: int
    """The integer part of the weight: the number of times that every document is read."""
    share: float
    """The fraction of the weight, at least 0 and below 1: the share of the documents that is read once more. A seeded
    hash selects them."""


def parse_mix(text: str) -> tuple[MixItem, ...]:
    """Returns the items of `--mix`. The weight is after the last `*` of an item, since globs may contain `*`, too.

    Raises:
        UsageError: If an item has no weight, or an invalid one.
    """
    items = []
    for item in text.split(","):
        pattern, _, number = item.strip().rpartition("*")
        try:
            weight = Decimal(number)
        except InvalidOperation:
            weight = Decimal(0)
        if not pattern or not weight.is_finite() or not 0 < weight <= _MAX_REPEATS:
            raise UsageError(
                f"--mix {text}: {item!r} is not GLOB*WEIGHT with a weight above 0 and up to {_MAX_REPEATS}; "
                "give each item a weight, e.g. 'a.jsonl*1,b/*.txt*0.5'"
            )
        items.append(MixItem(pattern, int(weight), float(weight % 1)))
    return tuple(items)


def parse_separator(text: str) -> str:
    r"""Returns the value of `--text_separator`, with \n and \t replaced by a line feed and a tab."""
    return text.replace("\\n", "\n").replace("\\t", "\t")


def _keeps_white_space(encoding: str) -> bool:
    """Determines whether each white space is encoded as a single byte that is never a part of another character."""
    for byte in range(256):
        for space in (b"\n", b"\r", b" ", b"\t", b"\f", b"\v"):
            try:
                text = (bytes([byte]) + space).decode(encoding)
            except UnicodeDecodeError:
                continue
            if not text.endswith(space.decode()) or text == space.decode():
                return False
    return b"\n".decode(encoding, "replace") == "\n"


def parse_encoding(text: str) -> str:
    """Returns Python's name of an encoding.

    Raises:
        UsageError: If there is no such encoding, or line ends in it can be recognized only from the file's beginning.
    """
    try:
        info = codecs.lookup(text)
        name = "utf-8" if info.name == "utf-8-sig" else info.name
        is_divisible = name not in _STATEFUL and _keeps_white_space(name)
    except (LookupError, ValueError) as error:  # ValueError: the name has a NUL
        raise UsageError(
            f"--encoding {text}: there is no such encoding of text; Python's names are allowed, such as latin-1, "
            "cp1252, gb18030 or shift_jis"
        ) from error
    if not is_divisible:
        raise UsageError(
            f"--encoding {text}: files in this encoding cannot be divided at line ends; convert them, e.g. with "
            f"iconv -f {text} -t UTF-8"
        )
    return name


NOT_IN_ALL_MANIFESTS = ("encoding", "encoding_errors", "text_separator", "content", "messages_column")
"""Options that a manifest has only if they are not the default."""


@dataclass(frozen=True)
class DatasetConfig(Options):
    """A Hugging Face dataset, loaded by the `datasets` library."""

    name: str = option(topic="input", metavar="NAME", exclusive="source")
    """A Hugging Face dataset: its name on the hub, or a folder that load_dataset or load_from_disk reads."""
    config: str | None = option(None, metavar="NAME", needs="dataset_name")
    """Configuration of the dataset, if it has several."""
    split: str = option("train", metavar="SPLIT", needs="dataset_name", default_text="as --split, or train")
    """Split of the dataset to read, e.g. train, 'train[:10%]' or 'train+validation'."""
    revision: str | None = option(None, metavar="REVISION", needs="dataset_name")
    """Branch, tag or commit of the dataset on the hub."""
    cache: str | None = option(
        None,
        metavar="DIR",
        needs="dataset_name",
        default_text="the cache of the datasets library",
        affects_bytes=False,
    )
    """Folder for the prepared dataset. If the workers are other machines, it must be remote, e.g. in gs://."""


def _refuse_options_of_texts(arguments: Mapping[str, Any]) -> None:
    for name in ("document", "text_key", "text_separator"):
        if name in arguments:
            raise UsageError(f"--{name}: does not apply to --content conversation; omit it")
    if arguments.get("input_format") == "text":
        raise UsageError("--input_format text: conversations are records of jsonl and parquet files; omit it")


@dataclass(frozen=True)
class InputConfig(Options):
    """The input. One of `input`, `mix` and `dataset` specifies the documents."""

    input: tuple[str, ...] = option((), topic="input", metavar="GLOB", exclusive="source")
    """Files, globs or folders, local or gs://. In a folder, the .txt, .jsonl, .ndjson and .parquet files, markup and
    source code are read, compressed ones as well, but no hidden ones. ** matches any number of folders."""
    mix: tuple[MixItem, ...] = option((), metavar="GLOB*WEIGHT,…", exclusive="source", parse=parse_mix)
    """Files with weights, e.g. 'books/*.jsonl*2.5,web.txt.gz*0.5'. The weight 2.5 reads every document twice, and a
    seeded half of the documents once more."""
    dataset: DatasetConfig | None = option(None, prefix="dataset_")
    input_format: Literal["auto", "text", "jsonl", "parquet"] = "auto"
    """Format of the files. auto follows each file's extension: .jsonl, .ndjson, .json, .parquet; other files are text,
    but .csv, .tsv and binary files are refused (text reads them as lines). Files that end in .gz, .bz2, .zst, .xz or
    .lz4 are decompressed."""
    document: Document = "auto"
    """Documents of a text file: its lines, its paragraphs (which blank lines separate) or the whole file. auto is the
    whole file for markup (.md, .rst, .html, .tex, …) and source code (.py, .c, .js, …), and lines for .txt and all
    others."""
    encoding: str = option("utf-8", metavar="NAME", parse=parse_encoding)
    """Encoding of text and jsonl files, by Python's name, e.g. latin-1, cp1252, gb18030 or shift_jis."""
    encoding_errors: Literal["strict", "replace"] = "strict"
    """Treatment of bytes that are invalid in the encoding: strict makes the record bad; replace substitutes
    U+FFFD."""
    text_key: str = option("text", metavar="KEY")
    """The key or column that contains a document's text, in jsonl, parquet and datasets. data.text is a key within an
    object or struct; title,text joins two texts. Strings of a list are joined, too."""
    text_separator: str = option(
        "\n", metavar="TEXT", parse=parse_separator, default_text="a line end; \\n and \\t are understood"
    )
    """Separator between the texts of several keys, and between the strings of a list."""
    content: Literal["text", "conversation"] = option("text", topic="input")
    """Content of a record: a text, or a conversation (messages, a prompt with its completion, or ShareGPT's
    conversations), which the tokenizer's chat template turns into text, to fine-tune a model."""
    messages_column: str = option(
        "auto",
        metavar="KEY",
        needs="content",
        default_text="messages or conversations, or prompt with completion or response",
    )
    """The key or column that contains a conversation's messages."""
    unit_bytes: int = option(32 << 20, topic="running", metavar="N", unit="MiB", bounds=(1, COUNT[-1]))
    """Bytes per work unit."""
    seed: int = 0
    """The seed of the run, which determines the documents that the fractions of weights in `mix` select."""

    @classmethod
    def complete(cls, arguments: dict[str, Any]) -> None:
        """See `Options.complete`: `--split` also names the dataset's split, unless `--dataset_split` does."""
        if arguments.get("content") == "conversation":
            _refuse_options_of_texts(arguments)
        if "dataset_name" not in arguments:
            return
        for name in ("input_format", "document", "encoding"):
            if arguments.get(name, getattr(cls, name)) != getattr(cls, name):
                raise UsageError(
                    f"--{name} {arguments[name]}: does not apply to a dataset, whose documents are rows of a table; "
                    "omit it"
                )
        split = arguments.get("split", DatasetConfig.split)
        if "dataset_split" not in arguments and not re.fullmatch(r"\w+(\.\w+)*", split):
            raise UsageError(
                f"--split {split}: also names the split to write; use --dataset_split '{split}' --split NAME"
            )
        arguments["dataset_split"] = arguments.get("dataset_split") or split

    def identity(self) -> dict[str, Any]:
        """See `Options.identity`. The fingerprint contains the list of files and the run's seed separately."""
        values = super().identity() | {"mix": sorted(map(list, self.mix))}
        del values["input"], values["seed"]
        # Manifests and fingerprints have these only if they are not the default.
        for name in NOT_IN_ALL_MANIFESTS:
            if values[name] == getattr(InputConfig, name):
                del values[name]
        return values
