"""Parses JSON from files that may be damaged or written by another program."""

from __future__ import annotations

import json
from typing import Any


def parse_json(data: bytes | str) -> Any:
    """Parses JSON.

    Raises:
        ValueError: If the text is not valid JSON, or is nested too deeply.
    """
    return _parse(data)


def parse_own_json(data: bytes | str) -> Any:
    """Parses JSON that this program has written, which has no duplicate keys, no NaN and no infinity.

    Raises:
        ValueError: As `parse_json`, or if the text has any of these.
    """
    return _parse(data, object_pairs_hook=_object, parse_constant=_refuse_constant)


def _parse(data: bytes | str, **hooks: Any) -> Any:
    try:
        return json.loads(data, **hooks)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {max(names, key=names.count)!r} occurs twice")
    return found


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")
