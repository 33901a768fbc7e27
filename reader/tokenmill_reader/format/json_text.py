"""JSON of files that may be damaged or written by another program, and JSON whose bytes follow from its content."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any


def parse_json(data: bytes | str) -> Any:
    """Parses JSON.

    Raises:
        ValueError: If the text is not valid JSON, or is nested too deeply.
    """
    return _parse(data)


def parse_own_json(data: bytes | str) -> Any:
    """Parses JSON of this format, which has no duplicate keys, no NaN and no infinity.

    Raises:
        ValueError: As `parse_json`, or if the text has any of these.
    """
    return _parse(data, object_pairs_hook=_object, parse_constant=_refuse_constant)


def parse_own_list(data: bytes) -> list[Any]:
    """Like `parse_own_json`, in half the time for a list of flat objects.

    Each key is followed by a colon. So if there are no more colons than keys in the result, no key occurs twice.

    Raises:
        ValueError: As `parse_own_json`.
    """
    items = _parse(data, parse_constant=_refuse_constant)
    if {dict}.issuperset(map(type, items)) and data.count(b":") == sum(map(len, items)):
        return items
    return parse_own_json(data)


def _parse(data: bytes | str, **hooks: Any) -> Any:
    try:
        return json.loads(data, **hooks)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {max(names, key=names.count)!r} occurs twice")
    return members


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def json_bytes(data: Mapping[str, Any]) -> bytes:
    """Encodes JSON with sorted keys, so equal content gives equal bytes. Lists of numbers stay on one line."""
    lines = [f"  {json.dumps(key)}: {_value(data[key])}" for key in sorted(data)]
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def _value(value: Any) -> str:
    if isinstance(value, Sequence) and value and isinstance(value[0], dict):
        return "[\n" + ",\n".join("    " + json.dumps(item, sort_keys=True) for item in value) + "\n  ]"
    return json.dumps(value, sort_keys=True)
