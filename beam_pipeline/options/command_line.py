"""Parses a verb's command line.

argparse does the parsing, because it can leave unknown options to Beam. Nothing heavy is imported here, so that
`--help` and errors are fast; Beam is imported only if it may have an option that the verb lacks.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from beam_pipeline.options.option_fields import Option, Options, build, options_of
from beam_pipeline.support.errors import UsageError
from tokenmill_reader.console.spelling import suggestion, underscored

_KINDS = {int: "a whole number", float: "a number"}


class Parsed(NamedTuple):
    """A command line, parsed and checked."""

    config: Any
    """The verb's options, an instance of its dataclass."""
    beam_args: list[str]
    """The remaining arguments, which are Beam's."""


class _Parser(argparse.ArgumentParser):
    def error(self, text: str) -> NoReturn:
        raise UsageError(text.removeprefix("argument "))


def parse(config: type[Options], argv: Sequence[str] | Parsed) -> Parsed:
    """Parses a command line. Returns one that is already parsed as it is.

    Unknown options are reported before missing ones: the one may be the other, misspelt.

    Raises:
        UsageError: If options are unknown or missing, or values are invalid or contradict each other.
    """
    if isinstance(argv, Parsed):
        return argv
    namespace, beam_args = parser_of(config).parse_known_args(underscored(argv))
    arguments = vars(namespace)
    if beam_args:
        _check_known(config, beam_args)
    options = options_of(config)
    _check_complete(options, arguments)
    for option in options:
        if option.name in arguments:
            _check(option, arguments)
        if option.is_list and option.name in arguments:
            arguments[option.name] = tuple(arguments[option.name])
    return Parsed(build(config, arguments), beam_args)


def parser_of(config: type[Options]) -> argparse.ArgumentParser:
    """Returns the parser of a verb. Its namespace contains only options that were given, and may lack required ones."""
    options = options_of(config)
    positional = "".join(f" {option.metavar}" for option in options if option.positional)
    parser = _Parser(
        prog=f"{program()} {config.verb}",
        usage=f"%(prog)s{positional} [options]",
        description=inspect.cleandoc(config.__doc__),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=not config.takes_beam_options,  # an abbreviation could be one of Beam's options
    )
    topics: dict[str, Any] = {"": parser}
    exclusive: dict[str, Any] = {}
    for option in options:
        if option.topic not in topics:
            topics[option.topic] = parser.add_argument_group(option.topic)
        if option.exclusive and option.exclusive not in exclusive:
            exclusive[option.exclusive] = topics[option.topic].add_mutually_exclusive_group()
            alternatives = _alternatives(option, options)
            if any(alternative.required for alternative in alternatives):
                flags = ", ".join(f"--{alternative.flag}" for alternative in alternatives)
                topics[option.topic].description = f"One of {flags} is required."
        _add(exclusive[option.exclusive] if option.exclusive else topics[option.topic], option)
    return parser


def flags_of(config: type[Options]) -> list[str]:
    """Returns the flags of a verb, such as --output."""
    return [f"--{option.flag}" for option in options_of(config) if not option.positional]


def program() -> str:
    """Returns the program's name as the user typed it."""
    return "python -m beam_pipeline" if Path(sys.argv[0]).name == "__main__.py" else "tokenmill"


def _alternatives(option: Option, options: Sequence[Option]) -> list[Option]:
    """Returns the options of an option's exclusive group, or the option alone if it is in none."""
    if not option.exclusive:
        return [option]
    return [alternative for alternative in options if alternative.exclusive == option.exclusive]


def _add(group: Any, option: Option) -> None:
    arguments: dict[str, Any] = {"help": option.help.replace("%", "%%")}
    if option.kind is bool:
        arguments["action"] = "store_false" if option.default else "store_true"
    else:
        arguments |= {"type": partial(_converted, option), "metavar": option.metavar}
        arguments |= {"choices": option.choices} if option.choices else {}
        arguments |= {"nargs": "+"} if option.is_list else {}
    if option.positional:
        group.add_argument(option.name, **arguments).required = False  # `_check_complete` reports it
        return
    if option.required and not option.exclusive:
        arguments["help"] += " Required."
    group.add_argument(f"--{option.flag}", dest=option.name, **arguments)


def _converted(option: Option, text: str) -> Any:
    """Returns the value of an argument.

    Raises:
        UsageError: If it is not one of the option's choices, or not of its type.
    """
    if option.parse:
        return option.parse(text)
    if option.choices and text not in option.choices:
        rule = f"{', '.join(option.choices[:-1])} or {option.choices[-1]}"
        raise UsageError(f"--{option.flag} {text}: must be {rule}{suggestion(text, option.choices)}")
    try:
        return option.kind(text)
    except ValueError as error:
        raise UsageError(f"--{option.flag} {text}: must be {_KINDS[option.kind]}") from error


def _check_known(config: type[Options], arguments: Sequence[str]) -> None:
    """Raises UsageError if neither the verb nor Beam has one of the arguments that the verb's parser left over."""
    if config.takes_beam_options:
        from beam_pipeline.options.beam_names import check_names  # takes seconds

        check_names(arguments, flags_of(config))
    elif arguments[0].startswith("--"):
        name = arguments[0].partition("=")[0]
        raise UsageError(f"unknown option {name}{suggestion(name, flags_of(config))}; see --help")
    else:
        raise UsageError(f"{arguments[0]!r}: belongs to no option; see --help")


def _check_complete(options: Sequence[Option], arguments: dict[str, Any]) -> None:
    """Raises UsageError if required options are missing."""
    missing = {}
    for option in options:
        group = _alternatives(option, options)
        if any(each.required for each in group) and arguments.keys().isdisjoint(each.name for each in group):
            names = (each.metavar if each.positional else f"--{each.flag}" for each in group)
            missing[group[0].name] = " or ".join(names)
    if missing:
        raise UsageError(f"missing: {', '.join(missing.values())}; see --help")


def _check(option: Option, arguments: dict[str, Any]) -> None:
    if option.needs and option.needs not in arguments:
        raise UsageError(f"--{option.flag} requires --{option.needs}; add it, or omit --{option.flag}")
    values = arguments[option.name] if option.is_list else [arguments[option.name]]
    if (option.required or option.is_list) and "" in values:  # as a path, it would be the current folder
        raise UsageError(f"{option.metavar if option.positional else f'--{option.flag}'}: must not be empty")
    if option.bounds:
        value, (minimum, maximum) = arguments[option.name], option.bounds
        if not (minimum <= value and (maximum is None or value <= maximum)):
            allowed = f"at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"
            raise UsageError(f"--{option.flag} {value}: must be {allowed}")
