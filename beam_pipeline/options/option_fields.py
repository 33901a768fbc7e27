"""Derives command-line options from the fields of frozen dataclasses.

A field's type, default and docstring (the string below it) become the option's type, default and help; `option` adds
the rest. Nothing heavy is imported here, so that `--help` is fast.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from functools import cache
from itertools import pairwise
from typing import Any, ClassVar, Literal, TypeVar, get_args, get_origin, get_type_hints

TOPICS = (
    "",
    "input",
    "curation",
    "conversations",
    "infilling",
    "tokenizer",
    "rows",
    "splits",
    "output",
    "running",
)


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
    bounds: tuple[float, float] | None = None
    """Smallest and largest value."""
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
    shown_default: Any = None
    """The default in the help; None if it has none."""
    config: type[Options] | None = None
    """The dataclass with the field."""
    field: str = ""

    @property
    def help(self) -> str:
        """The field's docstring, and the default. It is read from the source code, so ask only if it is shown."""
        text = _docstrings(self.config)[self.field]
        return text if self.shown_default is None else f"{text} Default: {self.shown_default}."


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


_Config = TypeVar("_Config", bound=Options)


def option(default: Any = MISSING, **attributes: Any) -> Any:
    """Declares a dataclass field with those attributes of `Option` that cannot be derived."""
    return field(default=default, metadata={"option": Option(**attributes)})


@cache
def options_of(config: type[Options]) -> tuple[Option, ...]:
    """Returns the options of a dataclass and of the dataclasses within it, ordered by topic."""
    return tuple(sorted(_options(config, "", frozenset()), key=lambda option: TOPICS.index(option.topic)))


def build(config: type[_Config], arguments: dict[str, Any], prefix: str = "") -> _Config:
    """Builds the dataclass from the values of options, by their names.

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
            values[member.name] = build(hint, arguments, inner)
    return config(**values)


def _options(config: type[Options], prefix: str, shared: frozenset[str]) -> Iterator[Option]:
    """Yields the options in the order of the fields.

    If a dataclass within another has a field of the same name, both fields share one option: names in `shared` are
    omitted here.
    """
    topic = ""
    own_names = frozenset(member.name for member, hint in _typed_fields(config) if not _is_options(hint))
    for member, hint in _typed_fields(config):
        declared, name = _declared(member), prefix + member.name
        topic = declared.topic or topic
        if _is_options(hint):
            yield from _options(hint, prefix + declared.prefix, own_names)
        elif name not in shared:
            named = replace(declared, name=name, topic=topic, config=config, field=member.name)
            yield _derive(named, member.default, hint)


def _derive(declared: Option, default: Any, hint: Any) -> Option:
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
        shown_default=shown,
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


@cache
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
