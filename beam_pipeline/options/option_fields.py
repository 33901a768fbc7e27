"""Derives command-line options from the fields of frozen dataclasses.

A field's type, default and docstring (the string below it) become the option's type, default and help; `option` adds
the rest. argparse parses the command line, because it can leave unknown options to Beam. Nothing heavy is imported
here, so that `--help` is fast.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Literal, NoReturn, TypeVar, get_args, get_origin, get_type_hints

from beam_pipeline.support.errors import UsageError
from tokenmill_reader.console.escaping import message

TOPICS = ("", "input", "tokenizer", "rows", "splits", "output", "running")


@dataclass(frozen=True, kw_only=True)
class Option:
    """The attributes that `option` adds to a field, and those that `options_of` derives from the field."""

    topic: str = ""
    """Heading in `--help`, one of TOPICS. Default: the topic of the preceding field."""
    metavar: str | None = None
    default_text: str | None = None
    """Describes a default that is not a constant."""
    unit: Literal["MiB"] | None = None
    """Unit in which the help shows the default."""
    bounds: tuple[float, float | None] | None = None
    """Smallest and largest value; None: no limit."""
    parse: Callable[[str], Any] | None = None
    """Converts the argument to the field's value. May raise UsageError."""
    positional: bool = False
    exclusive: str = ""
    """Name of a group of mutually exclusive options. If one of the group has no default, one of them is required."""
    needs: str = ""
    """Name of an option that is required with this one."""
    affects_bytes: bool = True
    """Whether the option can change the output's bytes, and so is part of the fingerprint."""
    prefix: str = ""
    """For a field that is a dataclass itself: prefix of its options' names."""

    # The rest is derived from the field.
    name: str = ""
    flag: str = ""
    """`name`, or `no_` and `name` for a flag that is on by default."""
    kind: type = str
    choices: tuple[str, ...] = ()
    is_list: bool = False
    required: bool = False
    default: Any = None
    help: str = ""


class Options:
    """Base class of the options of a verb, and of groups of options within them."""

    verb: ClassVar[str]
    takes_beam_options: ClassVar[bool] = False

    @classmethod
    def summary(cls) -> str:
        """Returns the first line of the docstring."""
        return inspect.cleandoc(cls.__doc__).partition("\n")[0]

    @classmethod
    def complete(cls, arguments: dict[str, Any]) -> None:
        """Checks the given options, and sets those whose default depends on other options."""

    def identity(self) -> dict[str, Any]:
        """Returns the options that affect the output's bytes, as JSON values."""
        values: dict[str, Any] = {}
        for member in fields(self):
            value, declared = getattr(self, member.name), _declared(member)
            if isinstance(value, Options):
                values |= {member.name: value.identity()} if declared.prefix else value.identity()
            elif declared.affects_bytes:
                values[member.name] = _as_json(value)
        return values


class _Parser(argparse.ArgumentParser):
    def error(self, text: str) -> NoReturn:
        super().error(message(text))


_Config = TypeVar("_Config", bound=Options)


def option(default: Any = MISSING, **attributes: Any) -> Any:
    """Declares a dataclass field with those attributes of `Option` that cannot be derived."""
    return field(default=default, metadata={"option": Option(**attributes)})


@cache
def options_of(config: type[Options]) -> tuple[Option, ...]:
    """Returns the options of a dataclass and of the dataclasses within it, ordered by topic."""
    return tuple(sorted(_options(config, "", frozenset()), key=lambda option: TOPICS.index(option.topic)))


def parse(config: type[_Config], argv: Sequence[str]) -> tuple[_Config, list[str]]:
    """Parses a command line.

    Returns:
        The config, and the remaining arguments, which are Beam's.

    Raises:
        UsageError: If values are invalid or contradict each other.
    """
    parser, beam = parser_of(config), []
    if config.takes_beam_options:
        namespace, beam = parser.parse_known_args(argv)
    else:
        namespace = parser.parse_args(argv)
    arguments = vars(namespace)
    for option in options_of(config):
        if option.name in arguments:
            _check(option, arguments)
        if option.is_list and option.name in arguments:
            arguments[option.name] = tuple(arguments[option.name])
    return _build(config, arguments, ""), beam


def parser_of(config: type[Options]) -> argparse.ArgumentParser:
    """Returns the parser of a verb. Its namespace contains only options that were given."""
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
            alternatives = [
                alternative for alternative in options if alternative.exclusive == option.exclusive
            ]
            required = any(alternative.required for alternative in alternatives)
            exclusive[option.exclusive] = topics[option.topic].add_mutually_exclusive_group(required=required)
            if required:
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


def _add(group: Any, option: Option) -> None:
    arguments: dict[str, Any] = {"help": option.help.replace("%", "%%")}
    if option.kind is bool:
        arguments["action"] = "store_false" if option.default else "store_true"
    else:
        arguments |= {"type": option.parse or option.kind, "metavar": option.metavar}
        arguments |= {"choices": option.choices} if option.choices else {}
        arguments |= {"nargs": "+"} if option.is_list else {}
    if option.positional:
        group.add_argument(option.name, **arguments)
        return
    if option.required and not option.exclusive:
        arguments |= {"required": True, "help": f"{arguments['help']} Required."}
    group.add_argument(f"--{option.flag}", dest=option.name, **arguments)


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


def _build(config: type[_Config], arguments: dict[str, Any], prefix: str) -> _Config:
    """Builds the dataclass from these values.

    A dataclass within it is built only if its required options were given. Otherwise, the field keeps its default.
    """
    config.complete(arguments)
    values = {}
    for member, hint in _typed_fields(config):
        name, inner = prefix + member.name, prefix + _declared(member).prefix
        if not _is_options(hint):
            values |= {member.name: arguments[name]} if name in arguments else {}
        elif {
            inner + required.name for required in fields(hint) if required.default is MISSING
        } <= arguments.keys():
            values[member.name] = _build(hint, arguments, inner)
    return config(**values)


def _options(config: type[Options], prefix: str, shared: frozenset[str]) -> Iterator[Option]:
    """Yields the options in the order of the fields.

    If a dataclass within another has a field of the same name, both fields share one option: names in `shared` are
    omitted here.
    """
    docstrings, topic = _docstrings(config), ""
    own_names = frozenset(member.name for member, hint in _typed_fields(config) if not _is_options(hint))
    for member, hint in _typed_fields(config):
        declared, name = _declared(member), prefix + member.name
        topic = declared.topic or topic
        if _is_options(hint):
            yield from _options(hint, prefix + declared.prefix, own_names)
        elif name not in shared:
            yield _derive(
                replace(declared, name=name, topic=topic), member.default, hint, docstrings[member.name]
            )


def _derive(declared: Option, default: Any, hint: Any, text: str) -> Option:
    if default in (MISSING, ()) or declared.default_text:
        shown = declared.default_text
        constant = None
    else:
        shown = None if hint is bool else f"{default >> 20} MiB" if declared.unit else default
        constant = default
    return replace(
        declared,
        flag=f"no_{declared.name}" if constant is True else declared.name,
        kind=hint if hint in (bool, int, float) else str,
        choices=get_args(hint) if get_origin(hint) is Literal else (),
        is_list=get_origin(hint) is tuple and not declared.parse,
        required=default is MISSING,
        default=constant,
        help=text if shown is None else f"{text} Default: {shown}.",
    )


def _declared(member: Field) -> Option:
    return member.metadata.get("option", Option())


def _typed_fields(config: type[Options]) -> Iterator[tuple[Field, Any]]:
    """Yields the fields with their types. For `X | None`, the type is X."""
    hints = get_type_hints(config)
    for member in fields(config):
        parts = get_args(hints[member.name])
        yield member, parts[0] if type(None) in parts else hints[member.name]


def _is_options(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Options)


def _docstrings(config: type[Options]) -> dict[str, str]:
    """Returns the string below each field, as one line. These strings exist only in the source code."""
    docstrings = {}
    for owner in config.__mro__[: config.__mro__.index(Options)]:
        [tree] = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
        for statement, following in pairwise(tree.body):
            if isinstance(statement, ast.AnnAssign) and isinstance(following, ast.Expr):
                docstrings[statement.target.id] = " ".join(ast.literal_eval(following.value).split())
    return docstrings


def _as_json(value: Any) -> Any:
    return [_as_json(item) for item in value] if isinstance(value, tuple) else value
