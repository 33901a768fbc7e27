"""The command line by which a dataset can be prepared again, as far as its manifest has it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from beam_pipeline.options.option_fields import options_of
from beam_pipeline.options.verbs import PrepareConfig
from beam_pipeline.support.amounts import counted
from beam_pipeline.views.reading import FinishedSplit
from tokenmill_reader.console.escaping import visible

_ELSEWHERE = ("input", "mix", "splits", "split", "tokenizer", "output")
_SHARD_FORM = (
    "max_length",
    "attention_mask",
    "segment_ids",
    "position_ids",
)  # determine the default of shard_size


def input_path(split: FinishedSplit) -> str:
    """Returns the path of the input's only file, or the common folder of its files with its final slash.

    Raises:
        DataError: If the dataset's list of inputs or of work units is missing or damaged.
    """
    if split.manifest["inputs"]["files"] == 1:
        return next(split.inputs())[0]
    return split.units[0].root if split.units else ""


def input_name(split: FinishedSplit) -> str:
    """Returns the name of the input: of its Hugging Face dataset, its only file, or else its folder.

    Raises:
        DataError: As `input_path`.
    """
    dataset = split.manifest["config"].get("dataset")
    if dataset:
        return str(dataset["name"])
    return input_path(split).rstrip("/").rpartition("/")[2] or counted(
        split.manifest["inputs"]["files"], "file"
    )


def prepare_command(split: FinishedSplit, dataset: str) -> str:
    """Returns the command with all options that are not the default.

    Args:
        split: One of the dataset's splits.
        dataset: The path of the dataset's folder.

    Raises:
        DataError: As `input_path`.
    """
    config = split.manifest["config"]
    words = [*_input_words(config, split), "--tokenizer", f"{dataset}/tokenizer", *_split_words(config)]
    omitted = {*_ELSEWHERE, *_with_other_defaults(config)}
    for option in options_of(PrepareConfig):
        value = config.get(option.name)
        if option.name in omitted or value is None or value == option.default or not option.affects_bytes:
            continue
        if option.kind is bool:
            words += [f"--{option.flag}"] * (value != option.flag.startswith("no_"))
        elif isinstance(value, list) and option.topic == "curation":
            items = (item if isinstance(item, str) else f"{item[0]}={item[1]:g}" for item in value)
            words += [f"--{option.flag}", ",".join(items)]
        elif not isinstance(value, list | dict):
            words += [f"--{option.flag}", str(value).encode("unicode_escape").decode()]
    return visible(shlex.join(["tokenmill", "prepare", *words, "--output", dataset]), one_line=True)


def _input_words(config: Mapping[str, Any], split: FinishedSplit) -> Iterator[str]:
    if config.get("mix"):
        items = (f"{pattern}*{repeats + share:g}" for pattern, repeats, share in config["mix"])
        yield from ("--mix", ",".join(items))
    elif config.get("dataset"):
        for name, value in config["dataset"].items():
            if value is not None:
                yield from (f"--dataset_{name}", str(value))
    else:
        path = input_path(split)
        yield from ("--input", f"{path}…" if path.endswith("/") else path)


def _with_other_defaults(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the options whose values are the default that other options determine."""
    if config["packing"] == "none":
        return (*_SHARD_FORM, "shuffle", *(["num_shards"] if config["num_shards"] == 1 else ()))
    completed = {name: config[name] for name in _SHARD_FORM}
    PrepareConfig.complete(completed)
    return ("shard_size",) if config["shard_size"] == completed["shard_size"] else ()


def _split_words(config: Mapping[str, Any]) -> Iterator[str]:
    splits = config["splits"]
    if len(splits) > 1:
        yield from ("--splits", ",".join(f"{name}={share:g}" for name, share in splits))
    elif splits[0][0] != PrepareConfig.split:
        yield from ("--split", splits[0][0])
