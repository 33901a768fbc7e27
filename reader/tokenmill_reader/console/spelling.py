"""Suggests what a user meant by a misspelt word."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def suggestion(word: str, known: Iterable[str]) -> str:
    """Returns "; did you mean …?" with the most similar known word, or nothing if none is similar."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.7)
    return f"; did you mean {found[0]}?" if found else ""
