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
    """Heading in `--help`, one of TOPICS. Default: the topic of the field above."""
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
    """Name of an option that must be given with this one."""
    affects_bytes: bool = True
    """Whether the option can change the output's bytes, and so belongs in the fingerprint."""
    prefix: str = ""
    """For a field that is a dataclass itself: prefix of its options' names."""

    # The rest is derived from the field.
    name: str = ""
    flag: str = ""
    """`name`, or `no_` and `name` for a flag that is on by default."""
    kind: type = str
    choices: tuple[str, ...] = ()
    many: bool = False
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
    def complete(cls, given: dict[str, Any]) -> None:
        """Checks the given options, and sets those whose default depends on other options."""

    def identity(self) -> dict[str, Any]:
        """Returns the options that affect the output's bytes, as JSON values."""
        found: dict[str, Any] = {}
        for each in fields(self):
            value, about = getattr(self, each.name), _about(each)
            if isinstance(value, Options):
                found |= {each.name: value.identity()} if about.prefix else value.identity()
            elif about.affects_bytes:
                found[each.name] = _as_json(value)
        return found


class _Parser(argparse.ArgumentParser):
    def error(self, text: str) -> NoReturn:
        super().error(message(text))


_Config = TypeVar("_Config", bound=Options)


def option(default: Any = MISSING, **about: Any) -> Any:
    """Declares a dataclass field with those attributes of `Option` that cannot be derived."""
    return field(default=default, metadata={"option": Option(**about)})


@cache
def options_of(config: type[Options]) -> tuple[Option, ...]:
    """Returns the options of a dataclass and of the dataclasses within it, ordered by topic."""
    return tuple(sorted(_options(config, "", frozenset()), key=lambda each: TOPICS.index(each.topic)))


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
    given = vars(namespace)
    for each in options_of(config):
        if each.name in given:
            _check(each, given)
        if each.many and each.name in given:
            given[each.name] = tuple(given[each.name])
    return _build(config, given, ""), beam


def parser_of(config: type[Options]) -> argparse.ArgumentParser:
    """Returns the parser of a verb. Its namespace contains only options that were given."""
    options = options_of(config)
    positional = "".join(f" {each.metavar}" for each in options if each.positional)
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
    for each in options:
        if each.topic not in topics:
            topics[each.topic] = parser.add_argument_group(each.topic)
        if each.exclusive and each.exclusive not in exclusive:
            alternatives = [other for other in options if other.exclusive == each.exclusive]
            required = any(other.required for other in alternatives)
            exclusive[each.exclusive] = topics[each.topic].add_mutually_exclusive_group(required=required)
            if required:
                flags = ", ".join(f"--{other.flag}" for other in alternatives)
                topics[each.topic].description = f"One of {flags} is required."
        _add(exclusive[each.exclusive] if each.exclusive else topics[each.topic], each)
    return parser


def flags_of(config: type[Options]) -> list[str]:
    """Returns the flags of a verb, such as --output."""
    return [f"--{each.flag}" for each in options_of(config) if not each.positional]


def program() -> str:
    """Returns the program's name, as the user called it."""
    return "python -m beam_pipeline" if Path(sys.argv[0]).name == "__main__.py" else "tokenmill"


def _add(group: Any, each: Option) -> None:
    about: dict[str, Any] = {"help": each.help.replace("%", "%%")}
    if each.kind is bool:
        about["action"] = "store_false" if each.default else "store_true"
    else:
        about |= {"type": each.parse or each.kind, "metavar": each.metavar}
        about |= {"choices": each.choices} if each.choices else {}
        about |= {"nargs": "+"} if each.many else {}
    if each.positional:
        group.add_argument(each.name, **about)
        return
    if each.required and not each.exclusive:
        about |= {"required": True, "help": f"{about['help']} Required."}
    group.add_argument(f"--{each.flag}", dest=each.name, **about)


def _check(each: Option, given: dict[str, Any]) -> None:
    if each.needs and each.needs not in given:
        raise UsageError(f"--{each.flag} requires --{each.needs}; add it, or omit --{each.flag}")
    values = given[each.name] if each.many else [given[each.name]]
    if (each.required or each.many) and "" in values:  # as a path, it would be the current folder
        raise UsageError(f"{each.metavar if each.positional else f'--{each.flag}'}: must not be empty")
    if each.bounds:
        value, (least, most) = given[each.name], each.bounds
        if not (least <= value and (most is None or value <= most)):
            allowed = f"at least {least}" if most is None else f"from {least} to {most}"
            raise UsageError(f"--{each.flag} {value}: must be {allowed}")


def _build(config: type[_Config], given: dict[str, Any], prefix: str) -> _Config:
    """Builds the dataclass from these values.

    A dataclass within it is built only if its required options were given; else the field keeps its default.
    """
    config.complete(given)
    values = {}
    for each, hint in _typed_fields(config):
        name, inner = prefix + each.name, prefix + _about(each).prefix
        if not _is_options(hint):
            values |= {each.name: given[name]} if name in given else {}
        elif all(inner + of.name in given for of in fields(hint) if of.default is MISSING):
            values[each.name] = _build(hint, given, inner)
    return config(**values)


def _options(config: type[Options], prefix: str, taken: frozenset[str]) -> Iterator[Option]:
    """Yields the options in the order of the fields.

    If a dataclass within another has a field of the same name, both fields share one option: names in `taken` are
    omitted here.
    """
    docstrings, topic = _docstrings(config), ""
    own = frozenset(each.name for each, hint in _typed_fields(config) if not _is_options(hint))
    for each, hint in _typed_fields(config):
        about, name = _about(each), prefix + each.name
        topic = about.topic or topic
        if _is_options(hint):
            yield from _options(hint, prefix + about.prefix, own)
        elif name not in taken:
            yield _derive(replace(about, name=name, topic=topic), each.default, hint, docstrings[each.name])


def _derive(about: Option, default: Any, hint: Any, text: str) -> Option:
    if default in (MISSING, ()) or about.default_text:
        shown = about.default_text
        known = None
    else:
        shown = None if hint is bool else f"{default >> 20} MiB" if about.unit else default
        known = default
    return replace(
        about,
        flag=f"no_{about.name}" if known is True else about.name,
        kind=hint if hint in (bool, int, float) else str,
        choices=get_args(hint) if get_origin(hint) is Literal else (),
        many=get_origin(hint) is tuple and not about.parse,
        required=default is MISSING,
        default=known,
        help=text if shown is None else f"{text} Default: {shown}.",
    )


def _about(of: Field) -> Option:
    return of.metadata.get("option", Option())


def _typed_fields(config: type[Options]) -> Iterator[tuple[Field, Any]]:
    """Yields the fields with their types. For `X | None`, the type is X."""
    hints = get_type_hints(config)
    for each in fields(config):
        parts = get_args(hints[each.name])
        yield each, parts[0] if type(None) in parts else hints[each.name]


def _is_options(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Options)


def _docstrings(config: type[Options]) -> dict[str, str]:
    """Returns the string below each field, as one line. These strings exist only in the source code."""
    found = {}
    for owner in config.__mro__[: config.__mro__.index(Options)]:
        [tree] = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
        for before, after in pairwise(tree.body):
            if isinstance(before, ast.AnnAssign) and isinstance(after, ast.Expr):
                found[before.target.id] = " ".join(ast.literal_eval(after.value).split())
    return found


def _as_json(value: Any) -> Any:
    return [_as_json(item) for item in value] if isinstance(value, tuple) else value
