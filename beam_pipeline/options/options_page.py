"""Generates docs/options.md, the options of all verbs in Markdown. `make docs-options` writes the file."""

from __future__ import annotations

import inspect
from itertools import groupby

from beam_pipeline.options.option_fields import Option, Options, options_of
from beam_pipeline.options.verbs import VERBS

_INTRODUCTION = """# Options of tokenmill

This page is generated from the dataclasses in `beam_pipeline/options/`: run `make docs-options` after a change to
them. `tokenmill VERB --help` prints the same texts. In names of options, hyphens are the same as underscores, also for
Beam's options.

`--config FILE` reads options, also Beam's, from a YAML file, in which `--max_length 128` is `max_length: 128`, a flag
is `true` or `false`, and several inputs are a list. The command line overrides it; `--no_NAME` overrides a flag.
`--print_config` prints such a file of the given options, with all others in its comments, and does nothing else.

Options with a ✓ can change the bytes of the output. They are part of the fingerprint: a run with `--resume` keeps only
files that were made with the same values of these options."""


def page() -> str:
    """Returns the page."""
    return "\n\n".join([_INTRODUCTION, *map(_section, VERBS.values())]) + "\n"


def _section(config: type[Options]) -> str:
    paragraphs = inspect.cleandoc(config.__doc__).split("\n\n")
    parts = [f"## {config.verb}", *map(_paragraph, paragraphs)]
    options = options_of(config)
    marked = not all(option.affects_bytes for option in options)
    for topic, of_topic in groupby(options, lambda option: option.topic):
        rows = [_row(option, marked) for option in of_topic]
        title = topic.capitalize() or "Options"
        head = f"| {title} | |{' |' if marked else ''}\n|---|---|{':-:|' if marked else ''}"
        parts.append("\n".join([head, *rows]))
    return "\n\n".join(parts)


def _paragraph(text: str) -> str:
    if text.startswith("Examples:"):
        return f"```\n{inspect.cleandoc(text.partition(':')[2])}\n```"
    return _escaped(text)


def _row(option: Option, marked: bool) -> str:
    name = option.metavar if option.positional else f"--{option.flag}"
    values = " ".join(filter(None, [name, not option.positional and option.metavar]))
    choices = "".join(f"<br>`{choice}`" for choice in option.choices)
    required = " Required." if option.required and not option.exclusive else ""
    mark = f" {'✓' if option.affects_bytes else ''} |" if marked else ""
    return f"| `{values}`{choices} | {_escaped(option.help)}{required} |{mark}"


def _escaped(text: str) -> str:
    for character in "\\*|<":
        text = text.replace(character, "\\" + character)
    return " ".join(text.split())


if __name__ == "__main__":
    print(page(), end="")
