"""Formats numbers and option values for the report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenmill_reader.charts import short
from tokenmill_reader.console.escaping import visible


def count(number: int) -> str:
    """Formats a count: in full below a million, else shortened."""
    return f"{number:,}" if number < 10**6 else short(number)


def option_value(value: Any) -> str:
    """Formats an option's value as a user would write it."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={option_value(part)}" for name, part in value.items() if part is not None)
    if isinstance(value, list):
        return ", ".join(
            " * ".join(map(option_value, part)) if isinstance(part, list) else option_value(part)
            for part in value
        )
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else visible(str(value), one_line=True)
