"""Files of minimal pairs, a good and a bad sentence each, as in BLiMP (Warstadt et al. 2020)."""

from __future__ import annotations

import json

from tpu_trainer.support import files
from tpu_trainer.support.errors import UsageError

Pair = tuple[str, str]
"""A good sentence and a bad one."""
_KEYS = ("sentence_good", "sentence_bad")
_FORM = json.dumps(dict(zip(_KEYS, ("Cats sleep.", "Cats sleeps."), strict=True)))


def read_pairs(path: str, *, limit: int | None = None) -> list[Pair]:
    """Reads a file of BLiMP's form: JSON lines with `sentence_good` and `sentence_bad`; other keys are ignored.

    Args:
        path: Local or a URL.
        limit: Only so many, from the beginning.

    Raises:
        UsageError: If the file cannot be read, has no pair, or a line has another form.
    """
    if not files.is_file(path):
        raise UsageError(f"--tasks: {path}: no such file")
    lines = enumerate(files.read_bytes(path).splitlines(), 1)
    pairs = [_pair(line, f"{path}, line {number}") for number, line in lines if line.strip()]
    if not pairs:
        raise UsageError(f"--tasks: {path}: no minimal pairs; each line has one, such as {_FORM}")
    return pairs[:limit]


def _pair(line: bytes, place: str) -> Pair:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:  # broken JSON or broken UTF-8
        raise UsageError(f"{place}: not JSON ({error})") from error
    texts = [value.get(key) for key in _KEYS] if isinstance(value, dict) else []
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise UsageError(f"{place}: not a minimal pair, such as {_FORM}")
    return texts[0], texts[1]
