"""Finding a document's text in a record by `--text_key`: `text`, the nested `data.text`, or several: `title,text`.

A key that occurs literally in a record takes precedence over one that is divided at its dots or commas. Lists of
strings are joined like the texts of several keys. If there are several keys, missing, null or empty ones are left out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any


def text_of(record: Mapping[str, Any], key: str, separator: str) -> tuple[str, str | None]:
    """Returns (the text of a record, None), or ("", the reason why it has none).

    >>> text_of({"title": "a", "data": {"text": "b"}}, "title,data.text", ": ")
    ('a: b', None)
    """
    keys = [key] if key in record else key.split(",")
    texts = []
    for text_key in keys:
        try:
            value = _value(record, text_key)
        except KeyError:
            if len(keys) > 1:
                continue
            return "", f"no key {key!r} (set by --text_key); the keys are {sorted(record)[:10]}"
        if isinstance(value, list):
            if not all(isinstance(item, str) for item in value):
                return "", f"the value of {text_key!r} is a list of other things than strings"
            value = separator.join(value)
        if value is None and len(keys) > 1:
            continue
        if not isinstance(value, str):
            return "", f"the value of {text_key!r} has type {type(value).__name__}, not string"
        texts.append(value)
    if not texts:
        return "", f"no text under any key of {key!r} (set by --text_key); the keys are {sorted(record)[:10]}"
    return separator.join(filter(None, texts)), None


def has_key(record: Mapping[str, Any], key: str) -> bool:
    """Returns whether a record has the key, or one of several keys.

    >>> has_key({"data": {"text": None}}, "title,data.text"), has_key({"data": {}}, "title,data.text")
    (True, False)
    """
    for text_key in [key] if key in record else key.split(","):
        with contextlib.suppress(KeyError):
            _value(record, text_key)
            return True
    return False


def value_of(record: Mapping[str, Any], key: str) -> Any:
    """Returns the value under a key, which may be nested; None if there is none."""
    with contextlib.suppress(KeyError):
        return _value(record, key)
    return None


def _value(record: Mapping[str, Any], key: str) -> Any:
    if key in record:
        return record[key]
    value: Any = record
    for name in key.split("."):
        if not isinstance(value, dict):
            raise KeyError(key)
        value = value[name]
    return value
