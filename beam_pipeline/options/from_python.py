"""Checks and completes options that a program has set, as the parser does for those of a command line."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from beam_pipeline.options.conversion import check_bounds
from beam_pipeline.options.input_options import MixItem
from beam_pipeline.options.option_fields import Option, Options, build, options_of
from beam_pipeline.support.errors import UsageError

_Config = TypeVar("_Config", bound=Options)

_KINDS = {bool: "True or False", int: "an int", float: "a number", str: "a str"}


def completed(config: _Config) -> _Config:
    """Returns the options of a verb as the command line with the same values would give them.

    A value that differs from its field's default counts as given. Options shared with the dataclass that contains
    another, such as the seed, have the container's value. Paths may be `os.PathLike`.

    Raises:
        UsageError: If a value is invalid, or values contradict each other.
    """
    arguments = _given(config, "")
    options = {option.name: option for option in options_of(type(config)) if option.name in arguments}
    for name, option in options.items():
        arguments[name] = _converted(option, arguments[name])
    for option in options.values():
        _check(option, arguments)
    _check_exclusive(config, arguments)
    return build(type(config), arguments)


def beam_arguments(beam_options: Mapping[str, Any]) -> list[str]:
    """Returns Beam's options as the arguments of a command line.

    >>> beam_arguments({"runner": "FlinkRunner", "streaming": True, "experiments": ["a", "b"], "region": None})
    ['--runner=FlinkRunner', '--streaming', '--experiments=a', '--experiments=b']
    """
    arguments: list[str] = []
    for name, value in beam_options.items():
        if value is True:
            arguments.append(f"--{name}")
        elif value is not None and value is not False:
            values = value if isinstance(value, list | tuple) else [value]
            arguments += [f"--{name}={item}" for item in values]
    return arguments


def _given(config: Options, prefix: str) -> dict[str, Any]:
    """Returns the values that differ from the defaults, by the names of their options."""
    values: dict[str, Any] = {}
    for member in fields(config):
        value = getattr(config, member.name)
        if isinstance(value, Options):
            inner = _given(value, prefix + _prefix(member.metadata))
            values = inner | values
            if prefix == "" and member.name == "dataset":
                values["dataset_split"] = value.split  # else the dataset's split would be that of the output
        elif value != member.default or type(value) is not type(member.default):
            values[prefix + member.name] = value
    return values


def _prefix(metadata: Mapping[str, Any]) -> str:
    return metadata["option"].prefix if "option" in metadata else ""


def _converted(option: Option, value: Any) -> Any:
    """Returns the value that the option has after parsing. Raises UsageError if it is of another type."""
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if option.parse and isinstance(value, str):
        return option.parse(value)
    if option.is_list:
        if not isinstance(value, list | tuple):
            raise UsageError(f"{option.name}={value!r:.80}: must be a tuple of {_KINDS[option.kind][2:]}")
        return tuple(_scalar(option, item) for item in value)
    if option.parse and isinstance(value, tuple | list):
        return _parsed_items(option, value)
    return (
        None if value is None and option.default is None and not option.required else _scalar(option, value)
    )


def _parsed_items(option: Option, items: Sequence[Any]) -> tuple[Any, ...]:
    """Returns the names, checked (name, number) pairs or `MixItem`s of an option with a syntax of its own."""
    if items and all(isinstance(item, str) for item in items):
        return option.parse(",".join(items))
    if all(isinstance(item, MixItem) for item in items):
        return tuple(items)
    try:
        return option.parse(",".join(f"{name}={number!r}" for name, number in items))
    except (TypeError, ValueError) as error:
        raise UsageError(f"{option.name}={items!r:.80}: must be a tuple of (name, number) pairs") from error


def _scalar(option: Option, value: Any) -> Any:
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if option.choices and value not in option.choices:
        raise UsageError(f"{option.name}={value!r:.80}: must be one of {', '.join(option.choices)}")
    if option.kind is float and type(value) is int:
        value = float(value)
    if type(value) is not option.kind:
        raise UsageError(f"{option.name}={value!r:.80}: must be {_KINDS[option.kind]}")
    return value


def _check(option: Option, arguments: Mapping[str, Any]) -> None:
    value = arguments[option.name]
    if option.needs and option.needs not in arguments:
        raise UsageError(f"{option.name}={value!r:.80}: requires {option.needs}")
    if (option.required or option.is_list) and "" in (value if option.is_list else [value]):
        raise UsageError(f"{option.name}: must not be empty")
    if option.bounds and value is not None:
        check_bounds(option, value, f"{option.name}={value!r}")


def _check_exclusive(config: Options, arguments: Mapping[str, Any]) -> None:
    """Raises UsageError if several options of a group are given, or none of a group of which one is required."""
    groups: dict[str, list[Option]] = {}
    for option in options_of(type(config)):
        if option.exclusive:
            groups.setdefault(option.exclusive, []).append(option)
    for group in groups.values():
        names = [option.name for option in group]
        given = [name for name in names if name in arguments]
        if len(given) > 1:
            raise UsageError(f"{' and '.join(given)} contradict each other; set only one of them")
        if not given and any(option.required for option in group):
            raise UsageError(f"one of {', '.join(names)} is required")
