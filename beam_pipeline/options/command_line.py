"""Parses a verb's command line, and the files of its `--config`.

argparse does the parsing, because it can leave unknown options to Beam. Nothing heavy is imported here, so that
`--help` and errors are fast; Beam is imported only if it may have an option that the verb lacks.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from beam_pipeline.options.conversion import convert, label
from beam_pipeline.options.option_fields import Option, Options, build, options_of
from beam_pipeline.support.errors import UsageError
from tokenmill_reader.console.spelling import suggestion, underscored


class Parsed(NamedTuple):
    """A command line, parsed and checked."""

    config: Any
    """The verb's options, an instance of its dataclass."""
    beam_args: list[str]
    """The remaining arguments, which are Beam's."""


@dataclass(frozen=True, kw_only=True)
class _Given:
    """What a command line and its files have, before it is converted."""

    options: dict[str, Any]
    """By the fields' names."""
    beam_args: list[str]
    places: dict[str, str]
    """The places of options that are from a file, by their names without dashes."""

    def place(self, name: str) -> str:
        """Returns the beginning of messages about an option."""
        return f"{self.places[name]}: " if name in self.places else ""


class _Parser(argparse.ArgumentParser):
    def error(self, text: str) -> NoReturn:
        text = re.sub("ignored explicit argument .*", "takes no value", text.removeprefix("argument "))
        raise UsageError(f"{text}; see --help")


def parse(config: type[Options], argv: Sequence[str] | Parsed) -> Parsed:
    """Parses a command line. Returns one that is already parsed as it is.

    Unknown options are reported before missing ones: the one may be the other, misspelt.

    Raises:
        UsageError: If options are unknown or missing, or values are invalid or contradict each other.
    """
    if isinstance(argv, Parsed):
        return argv
    given = _read(config, argv)
    return Parsed(build(config, _values(config, given)), given.beam_args)


def config_yaml(config: type[Options], argv: Sequence[str], *, ascii_only: bool) -> str:
    """Returns a file for `--config` that stands for a command line. See `as_yaml`.

    Raises:
        UsageError: As `parse` does.
    """
    from beam_pipeline.options.config_file import as_yaml

    given = _read(config, argv)
    values = _values(config, given)
    kept = {name: value for name, value in given.options.items() if name in values}
    build(config, values)  # checks them
    return as_yaml(config, kept, given.beam_args, ascii_only=ascii_only)


def _values(config: type[Options], given: _Given) -> dict[str, Any]:
    """Returns the values of the verb's options, checked, by their fields' names. A flag that is not set is omitted."""
    if given.beam_args:
        _check_known(config, given)
    options = options_of(config)
    values = {}
    for option in options:
        if option.name in given.options:
            try:
                value = convert(option, given.options[option.name])
            except UsageError as error:
                raise UsageError(f"{given.place(option.flag)}{error}") from error
            if option.kind is not bool or value != bool(option.default):
                values[option.name] = value
    _check_groups(options, given)
    for option in options:
        if option.needs and option.name in values and option.needs not in values:
            place = given.place(option.flag)
            raise UsageError(
                f"{place}--{option.flag} requires --{option.needs}; add it, or omit --{option.flag}"
            )
    return values


def parser_of(config: type[Options], *, with_help: bool = True) -> argparse.ArgumentParser:
    """Returns the parser of a verb, with or without the help of its options, which takes longer.

    Its namespace has what was given, unchecked: the text of each value.
    """
    options = options_of(config)
    positional = "".join(f" {option.metavar}" for option in options if option.positional)
    parser = _Parser(
        prog=f"{program()} {config.verb}",
        usage=f"%(prog)s{positional} [options]",
        description=inspect.cleandoc(config.__doc__),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,  # an abbreviation could be one of Beam's options
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        action="append",
        help="YAML file of options, such as max_length: 128. Options of the command line override it.",
    )
    parser.add_argument(
        "--print_config", action="store_true", help="Print the given options as such a file, and end."
    )
    groups: dict[str, Any] = {"": parser}
    for option in options:
        if option.topic not in groups:
            groups[option.topic] = parser.add_argument_group(option.topic)
        alternatives = _alternatives(option, options)
        if (
            option is alternatives[0]
            and len(alternatives) > 1
            and any(each.required for each in alternatives)
        ):
            flags = ", ".join(map(label, alternatives))
            groups[option.topic].description = f"One of {flags} is required."
        _add(groups[option.topic], option, with_help=with_help)
    return parser


def program() -> str:
    """Returns the program's name as the user typed it."""
    return "python -m beam_pipeline" if Path(sys.argv[0]).name == "__main__.py" else "tokenmill"


def _add(group: Any, option: Option, *, with_help: bool) -> None:
    arguments: dict[str, Any] = {"help": option.help.replace("%", "%%") if with_help else ""}
    if option.positional:
        # `_check_groups` reports it if it is missing.
        group.add_argument(option.name, metavar=option.metavar, **arguments).required = False
        return
    if option.required and not option.exclusive:
        arguments["help"] += " Required."
    if option.kind is bool:
        group.add_argument(f"--{option.flag}", dest=option.name, action="store_true", **arguments)
        opposite = option.name if option.flag != option.name else f"no_{option.name}"  # overrides a file's
        group.add_argument(f"--{opposite}", dest=option.name, action="store_false", help=argparse.SUPPRESS)
        return
    metavar = f"{{{','.join(option.choices)}}}" if option.choices else option.metavar
    arguments |= {"nargs": "+", "action": "extend"} if option.is_list else {}
    group.add_argument(f"--{option.flag}", dest=option.name, metavar=metavar, **arguments)


def _alternatives(option: Option, options: Sequence[Option]) -> list[Option]:
    """Returns the options of an option's exclusive group, or the option alone if it is in none."""
    if not option.exclusive:
        return [option]
    return [alternative for alternative in options if alternative.exclusive == option.exclusive]


def _read(config: type[Options], argv: Sequence[str]) -> _Given:
    """Reads a command line and its files. The command line overrides the files, and each file those before it.

    An option also overrides the alternatives of its exclusive group.
    """
    with_help = any(word.startswith("-h") or word == "--help" for word in argv)
    namespace, beam_args = parser_of(config, with_help=with_help).parse_known_args(underscored(argv))
    given = vars(namespace)
    given.pop("print_config", None)
    files = given.pop("config", ())
    if not files:
        return _Given(options=given, beam_args=beam_args, places={})
    from beam_pipeline.options.config_file import beam_arguments, read_config

    settings = {}
    for path in files:
        settings |= read_config(path)
    options = options_of(config)
    overridden = {word[2:].partition("=")[0] for word in beam_args if word.startswith("--")}
    for option in options:
        if not given.keys().isdisjoint(each.name for each in _alternatives(option, options)):
            overridden.add(option.flag)
    names = {option.flag: option.name for option in options}
    from_file, places = {}, {}
    for key, setting in settings.items():
        if key not in overridden:
            places[key] = setting.place
            if key in names:
                from_file[names[key]] = setting.value
            else:
                beam_args = [*beam_args, *beam_arguments(key, setting)]
    return _Given(options=given | from_file, beam_args=beam_args, places=places)


def _check_known(config: type[Options], given: _Given) -> None:
    """Raises UsageError if neither the verb nor Beam has one of the arguments that the verb's parser left over."""
    known = [f"--{option.flag}" for option in options_of(config) if not option.positional]
    known += [] if given.places else ["--config", "--print_config"]
    word = given.beam_args[0].partition("=")[0]
    if config.takes_beam_options:
        from beam_pipeline.options.beam_names import check_names  # takes seconds

        check_names(given.beam_args, known, given.places)
    elif word.startswith("--"):
        place = given.place(word.removeprefix("--"))
        raise UsageError(f"{place}unknown option {word}{suggestion(word, known)}; see --help")
    else:
        raise UsageError(f"{word!r}: belongs to no option; see --help")


def _check_groups(options: Sequence[Option], given: _Given) -> None:
    """Raises UsageError if required options are missing, or options exclude each other."""
    missing = {}
    for option in options:
        group = _alternatives(option, options)
        chosen = [each for each in group if each.name in given.options]
        if len(chosen) > 1:
            place = given.place(chosen[1].flag)
            raise UsageError(
                f"{place}{label(chosen[1])}: not allowed with {label(chosen[0])}; omit one of them"
            )
        if not chosen and any(each.required for each in group):
            missing[group[0].name] = " or ".join(map(label, group))
    if missing:
        raise UsageError(f"missing: {', '.join(missing.values())}; see --help")
