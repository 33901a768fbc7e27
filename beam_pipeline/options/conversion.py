"""Converts what was given for an option, in a command line or a file, to the value of its field."""

from __future__ import annotations

import contextlib
from typing import Any

from beam_pipeline.options.option_fields import Option
from beam_pipeline.support.errors import UsageError
from tokenmill_reader.console.escaping import excerpt
from tokenmill_reader.console.spelling import suggestion

_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


def convert(option: Option, given: Any) -> Any:
    """Returns the value of an option.

    Args:
        option: The option.
        given: Text of a command line, a value of a YAML file, or a list of such values; for a flag, whether it is set.

    Raises:
        UsageError: If it is not of the option's type, or not allowed.
    """
    if option.is_list:
        items = given if isinstance(given, list) else [given]
        values = tuple(_converted(option, item) for item in items)
    else:
        values = (_converted(option, given),)
    if (option.required or option.is_list) and (
        "" in values or not values
    ):  # as a path, it is the current folder
        raise UsageError(f"{label(option)}: must not be empty")
    if option.bounds:
        check_bounds(option, values[0], f"{label(option)} {values[0]}")
    return values if option.is_list else values[0]


def label(option: Option) -> str:
    """Returns the option's name for messages: --output, or OUT for a positional argument."""
    return option.metavar if option.positional else f"--{option.flag}"


def _converted(option: Option, given: Any) -> Any:
    is_flag = option.kind is bool
    if is_flag and isinstance(given, bool):
        return given == (option.flag == option.name)  # not so for no_attention_mask
    if isinstance(given, str) and not is_flag:
        if option.parse:
            return option.parse(given)
        if not option.choices or given in option.choices:
            with contextlib.suppress(ValueError):
                return option.kind(given)
    elif (option.kind is float and type(given) is int) or type(given) is option.kind:
        return option.kind(given)
    raise UsageError(f"{label(option)} {_shown(given)}: must be {_rule(option, given)}")


def _rule(option: Option, given: Any) -> str:
    """Describes the values of an option."""
    if option.choices:
        return f"{', '.join(option.choices[:-1])} or {option.choices[-1]}{suggestion(str(given), option.choices)}"
    is_scalar = isinstance(given, bool | int | float)
    return _KINDS[option.kind] + ("; write it in quotes" if option.kind is str and is_scalar else "")


def _shown(given: Any) -> str:
    """Returns what was given as YAML has it."""
    if given is None:
        return "null"
    return str(given).lower() if isinstance(given, bool) else excerpt(str(given))


def check_bounds(option: Option, value: float, place: str) -> None:
    """Raises UsageError if a number is not within the option's bounds. The message begins with `place`."""
    minimum, maximum = option.bounds
    if not minimum <= value <= maximum:
        raise UsageError(f"{place}: must be from {minimum} to {maximum}")
