"""Generates docs/trainer-options.md, the options of all verbs in Markdown. `make docs-options` writes the file."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin, get_type_hints

from docstring_parser import parse_from_object

from tpu_trainer.config import FitConfig
from tpu_trainer.verbs.command_line import VERBS, summary

_INTRODUCTION = """# Options of tokenmill-trainer

This page is generated from the dataclasses in `trainer/tpu_trainer/config/` and `trainer/tpu_trainer/cloud/config.py`:
run `make docs-options` after a change to them. `tokenmill-trainer VERB --help` prints the same texts.

`--config FILE` reads options from a YAML file, in which `--train.steps 100` is `train: {steps: 100}`; later options
override it. `--print_config` prints all options with their values, as such a file. In names of options, hyphens are the
same as underscores. `--quiet` shows neither progress nor notes, only results and errors."""


def page() -> str:
    """Returns the page."""
    return "\n\n".join([_INTRODUCTION, *map(_verb, VERBS)]) + "\n"


def _verb(verb: str) -> str:
    config = VERBS[verb]
    base = FitConfig if config is not FitConfig and issubclass(config, FitConfig) else None
    parts = [f"## {verb}", summary(config)]
    if examples := inspect.cleandoc(config.__doc__).partition("Examples:")[2]:
        parts.append(f"```\n{inspect.cleandoc(examples)}\n```")
    if base is not None:
        parts.append("It has the options of [fit](#fit), and these:")
    parts += _tables(config, "", base)
    return "\n\n".join(parts)


def _tables(config: type, prefix: str, inherited: type | None = None) -> Iterator[str]:
    """Yields a table of the options of a dataclass, and one for each dataclass in it.

    Args:
        config: The dataclass.
        prefix: The prefix of its options' names, such as `train.`.
        inherited: A base class; only fields that `config` itself declares are shown.
    """
    hints = get_type_hints(config)
    helps = {param.arg_name: param.description for param in parse_from_object(config).params}
    shown = [
        field for field in dataclasses.fields(config) if not inherited or field.name in config.__annotations__
    ]
    rows = [
        _row(_option(field, prefix), field, hints[field.name], helps[field.name])
        for field in shown
        if not dataclasses.is_dataclass(hints[field.name])
    ]
    title = "Option" if not prefix else summary(config).rstrip(".")
    if rows:
        yield "\n".join([f"| {title} | default | |", "|---|---|---|", *rows])
    for field in shown:
        if dataclasses.is_dataclass(hints[field.name]):
            yield from _tables(hints[field.name], f"{prefix}{field.name}.", None)


def _row(name: str, field: dataclasses.Field, hint: Any, text: str) -> str:
    choices = "".join(f"<br>`{choice}`" for choice in get_args(hint)) if get_origin(hint) is Literal else ""
    required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    shown = "required" if required else _default(field.default)
    return f"| `{name}`{choices} | {shown} | {_escaped(text)} |"


def _option(field: dataclasses.Field, prefix: str) -> str:
    """Returns the name of an option, or of an argument that has none."""
    return (
        field.metadata["argument"]["metavar"] if "positional" in field.metadata else f"--{prefix}{field.name}"
    )


def _default(value: Any) -> str:
    """Returns a default as YAML has it; nothing if the text explains it."""
    if value in (None, "", dataclasses.MISSING):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _escaped(text: str) -> str:
    """Escapes what Markdown would interpret outside of inline code."""
    parts = " ".join(text.split()).split("`")
    for index in range(0, len(parts), 2):
        for character in "\\*<":
            parts[index] = parts[index].replace(character, "\\" + character)
    return "`".join(parts).replace("|", "\\|")


if __name__ == "__main__":
    print(page(), end="")
