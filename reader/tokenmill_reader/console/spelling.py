"""Suggests what a user meant by a misspelt word."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def suggestion(word: str, words: Iterable[str]) -> str:
    """Returns "; did you mean …?" with the most similar known word, or nothing if none is similar."""
    matches = difflib.get_close_matches(word, list(words), n=1, cutoff=0.7)
    return f"; did you mean {matches[0]}?" if matches else ""
