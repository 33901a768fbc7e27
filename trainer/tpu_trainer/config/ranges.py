"""Validation of options. Messages name the option, its value and the valid values."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from tpu_trainer.support.errors import UsageError

Range = tuple[Callable[[Any], bool], str]

AT_LEAST_1: Range = (lambda value: 1 <= value < 2**31, "must be at least 1 and below 2**31")
POSITIVE: Range = (lambda value: 0 < value < float("inf"), "must be positive and finite")
NOT_NEGATIVE: Range = (lambda value: 0 <= value < float("inf"), "must not be negative or infinite")
BETWEEN_0_AND_1: Range = (lambda value: 0 < value < 1, "must be between 0 and 1")
FROM_0_BELOW_1: Range = (lambda value: 0 <= value < 1, "must be in [0, 1)")
ABOVE_0_TO_1: Range = (lambda value: 0 < value <= 1, "must be in (0, 1]")
FROM_0_TO_1: Range = (lambda value: 0 <= value <= 1, "must be in [0, 1]")
SEED: Range = (lambda value: 0 <= value < 2**32, "must be in [0, 2**32)")


def require(condition: bool, name: str, value: object, rule: str) -> None:
    """Raises UsageError with the option `name`, its value and the `rule` unless `condition` holds."""
    if not condition:
        raise UsageError(f"--{name} is {value!r}: {rule}")


def check_ranges(config: Any, section: str = "", **ranges: Range) -> None:
    """Raises UsageError if a field is out of its range.

    Args:
        config: A dataclass with postponed annotations; None is valid in fields whose type includes it.
        section: The prefix of the options' names, such as train.
        **ranges: Field → range.
    """
    types = {field.name: field.type for field in dataclasses.fields(config)}
    for name, (valid, rule) in ranges.items():
        value = getattr(config, name)
        optional = "None" in types[name]
        if not (optional and value is None):
            option = f"{section}.{name}" if section else name
            require(valid(value), option, value, f"{rule}, or null" if optional else rule)
