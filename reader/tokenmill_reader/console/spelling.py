"""The spelling of options: what a user meant by a misspelt word, and hyphens in names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

_NAME = re.compile(r"--[\w.-]+")


def suggestion(word: str, words: Iterable[str]) -> str:
    """Returns "; did you mean …?" with the most similar known word, or nothing if none is similar."""
    matches = difflib.get_close_matches(word, list(words), n=1, cutoff=0.7)
    return f"; did you mean {matches[0]}?" if matches else ""


def underscored(arguments: Sequence[str]) -> list[str]:
    """Returns the arguments of a command line with underscores in the names of its options.

    >>> underscored(["--vocab-size=9", "--runner", "a-b", "--", "--x-y"])
    ['--vocab_size=9', '--runner', 'a-b', '--', '--x-y']
    """
    end = arguments.index("--") if "--" in arguments else len(arguments)
    return [*map(_underscored, arguments[:end]), *arguments[end:]]


def _underscored(argument: str) -> str:
    name, separator, value = argument.partition("=")
    if not _NAME.fullmatch(name):
        return argument
    return f"--{name[2:].replace('-', '_')}{separator}{value}"
