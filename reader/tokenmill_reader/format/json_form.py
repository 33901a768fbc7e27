"""Checks JSON of foreign files against a form: which keys there must be, and the types and bounds of the values.

The form of an object is a dict of its values' forms; keys that it does not name are ignored. The form of a list is a
list with one form for all items, or with one form per item. A tuple holds alternatives; `Optional` marks a key that may
be absent. Other forms are a type, a pattern of text, a range of whole numbers, a share, and None.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

COUNT = range(2**53)  # whole numbers up to which JSON's are exact everywhere
NUMBER = range(-(2**63), 2**64)

# Names of files become parts of paths: they cannot lead out of their folder, and no file system rejects them.
_NAME = r"(?!\.\.?(?:/|$))[^/\\\x00-\x1f\x7f]{1,255}"
RELATIVE_PATH = re.compile(f"{_NAME}(/{_NAME})*")
HEX_8, HEX_16, HEX_64 = (re.compile(f"[0-9a-f]{{{digits}}}") for digits in (8, 16, 64))


@dataclass(frozen=True)
class Share:
    """The form of a number from 0 to 1, with or without a point."""


@dataclass(frozen=True)
class Optional:
    """The form of a key that may be absent."""

    form: Any


def mismatches(value: Any, form: Any, place: str) -> Iterator[str]:
    """Yields a message for each part of a value that does not match its form. `place` names the value."""
    if isinstance(form, dict) and isinstance(value, dict):
        for key, value_form in form.items():
            name = f"{place}.{key}" if place else key
            if key in value:
                yield from mismatches(
                    value[key], value_form.form if isinstance(value_form, Optional) else value_form, name
                )
            elif not isinstance(value_form, Optional):
                yield f"{name} is missing"
    elif isinstance(form, list) and isinstance(value, list):
        if len(form) > 1 and len(value) != len(form):
            yield f"{place} is {reprlib.repr(value)}, not a list of {len(form)}"
        elif len(form) > 1 or not _all_fit(value, form[0]):
            for index, item in enumerate(value):
                yield from mismatches(item, form[index % len(form)], f"{place}[{index}]")
    elif not _fits(value, form):
        yield f"{place} is {reprlib.repr(value)}, not {_describe(form)}"


def _all_fit(values: list, form: Any) -> bool:
    """Whether all values are whole numbers of a range, without a loop in Python: lists of counts have millions."""
    if not isinstance(form, range) or not {int}.issuperset(map(type, values)):
        return False
    return not values or (min(values) >= form[0] and max(values) <= form[-1])


def _fits(value: Any, form: Any) -> bool:
    if isinstance(form, tuple):
        return any(next(mismatches(value, alternative, ""), None) is None for alternative in form)
    if isinstance(form, re.Pattern):
        return isinstance(value, str) and form.fullmatch(value) is not None
    if isinstance(form, range):
        return type(value) is int and value in form
    if isinstance(form, Share):
        return type(value) in (int, float) and 0 <= value <= 1
    return value is None if form is None else isinstance(form, type) and type(value) is form


def _describe(form: Any) -> str:
    if isinstance(form, tuple):
        return " or ".join(map(_describe, form))
    if isinstance(form, re.Pattern):
        return f"text of the form {form.pattern}"
    if isinstance(form, range):
        return (
            "a non-negative whole number" if form is COUNT else f"a whole number from {form[0]} to {form[-1]}"
        )
    if isinstance(form, Share):
        return "a number from 0 to 1"
    if isinstance(form, list | dict):
        return "a list" if isinstance(form, list) else "an object"
    names = {
        str: "text",
        dict: "an object",
        bool: "true or false",
        float: "a number with a point",
        None: "null",
    }
    return names[form]
