"""Options in YAML files: `--config` reads one, and `--print_config` prints one.

A key is an option without its dashes, of the verb or of Beam. Its value is a text, a number, true or false for a flag,
or a list of texts.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from beam_pipeline.options.conversion import convert
from beam_pipeline.options.option_fields import Options, options_of
from beam_pipeline.support.errors import UsageError
from tokenmill_reader.console.escaping import excerpt
from tokenmill_reader.console.option_yaml import OptionLoader, error_text

_MOST_BYTES = 1 << 20  # PyYAML reads about 1 MB in 10 s
_WIDTH = 100


class Setting(NamedTuple):
    """A value of a file."""

    value: Any
    """A str, int, float, bool or None, or a list of them."""
    place: str
    """The file and the line."""


class _Dumper(yaml.SafeDumper):
    """Quotes the texts that `OptionLoader` would not read as texts."""

    yaml_implicit_resolvers = OptionLoader.yaml_implicit_resolvers

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def read_config(path: str) -> dict[str, Setting]:
    """Reads a file. Returns its values by their keys.

    Raises:
        UsageError: If it cannot be read, or is not a mapping of names to values or lists of values.
    """
    try:
        with Path(path).open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: the path has a NUL
        raise UsageError(f"--config {path}: cannot be read: {error}") from error
    if len(content) > _MOST_BYTES:
        raise UsageError(f"--config {path}: has more than {_MOST_BYTES:,} bytes, so it is no file of options")
    try:
        loader = OptionLoader(content.decode())
        node = loader.get_single_node()
        if node is None:
            return {}
        if not isinstance(node, yaml.MappingNode) or node.tag != OptionLoader.DEFAULT_MAPPING_TAG:
            raise UsageError(
                f"--config {path}: is not a mapping of options to values, such as 'max_length: 128'"
            )
        settings: dict[str, Setting] = {}
        for key, value in node.value:
            name, setting = _setting(loader, path, key, value)
            if name in settings:  # once with hyphens; the loader refuses equal keys
                raise UsageError(
                    f"{setting.place}: {name} is already set in {settings[name].place}; remove one"
                )
            settings[name] = setting
        return settings
    except (yaml.YAMLError, RecursionError) as error:
        raise UsageError(f"--config {path}: is not valid YAML: {error_text(error)}") from error
    except UnicodeDecodeError as error:
        raise UsageError(
            f"--config {path}: is not UTF-8 text ({error.reason} at byte {error.start})"
        ) from error


def _setting(loader: OptionLoader, path: str, key: yaml.Node, value: yaml.Node) -> tuple[str, Setting]:
    place = f"{path}:{key.start_mark.line + 1}"
    if not isinstance(key, yaml.ScalarNode):
        raise UsageError(f"{place}: a key is not the name of an option, but a list or a mapping")
    is_list = isinstance(value, yaml.SequenceNode) and value.tag == OptionLoader.DEFAULT_SEQUENCE_TAG
    items = value.value if is_list else [value]
    # Nothing nested is ever constructed, so aliases cannot multiply.
    if not all(isinstance(item, yaml.ScalarNode) for item in items):
        raise UsageError(f"{place}: {excerpt(key.value)}: must be a value or a list of values, without a tag")
    values = [loader.construct_object(item) for item in items]
    return key.value.replace("-", "_"), Setting(values if is_list else values[0], place)


def beam_arguments(name: str, setting: Setting) -> list[str]:
    """Returns a value of a file as arguments of Beam.

    Raises:
        UsageError: If it is neither text, a number, true nor a list of texts and numbers.
    """
    if setting.value is True:
        return [f"--{name}"]
    items = setting.value if isinstance(setting.value, list) else [setting.value]
    if any(isinstance(item, bool | None) for item in items):
        raise UsageError(f"{setting.place}: --{name}: options of Beam cannot be false or null; omit it")
    return [f"--{name}={item}" for item in items]


def as_yaml(
    config: type[Options], given: Mapping[str, Any], beam_args: Sequence[str], *, ascii_only: bool
) -> str:
    """Returns a file that stands for a command line, with all other options of the verb in its comments.

    Args:
        config: The verb's dataclass.
        given: What was given for the verb's options, by their fields' names.
        beam_args: Beam's arguments.
        ascii_only: Whether to escape all other characters.
    """

    def dump(name: str, value: Any) -> str:
        document = {name: value}
        return yaml.dump(
            document, Dumper=_Dumper, allow_unicode=not ascii_only, width=1 << 30, sort_keys=False
        )

    lines = [f"# Options of tokenmill {config.verb}"]
    for topic, options in groupby(options_of(config), lambda option: option.topic):
        lines += ["", f"# {topic}:"] if topic else []
        for option in options:
            lines += ["", *textwrap.wrap(option.help, _WIDTH, initial_indent="# ", subsequent_indent="# ")]
            if option.name in given:
                value = given[option.name]
                is_number = option.kind in (int, float) and not option.parse
                lines.append(dump(option.flag, convert(option, value) if is_number else value).rstrip("\n"))
            else:
                is_constant = option.default is not None and option.kind is not bool
                default = dump(option.flag, option.default) if is_constant else f"{option.flag}:"
                lines.append(f"# {default}".rstrip("\n"))
    if beam_args:
        lines += ["", "# Options of Beam:"]
        lines += [dump(name, value).rstrip("\n") for name, value in _beam_settings(beam_args)]
    return "\n".join(lines)


def _beam_settings(arguments: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yields Beam's options with their values, as `beam_arguments` takes them."""
    values: dict[str, list[str]] = {}
    for argument in arguments:
        if argument.startswith("--"):
            name, separator, value = argument[2:].partition("=")
            values.setdefault(name, []).extend([value] if separator else [])
        else:
            values[name].append(argument)
    for name, items in values.items():
        yield name, True if not items else items[0] if len(items) == 1 else items
