"""The parser of options: YAML without surprises, and messages that name the option, its value and the remedy."""

from __future__ import annotations

import re
from types import NoneType
from typing import Any, NoReturn, get_args

import yaml
from jsonargparse import ArgumentParser, Namespace, _loaders_dumpers, set_loader

from tokenmill_reader.console.escaping import message
from tokenmill_reader.console.option_yaml import OptionLoader, error_text
from tokenmill_reader.console.spelling import suggestion

_TYPES = {
    "bool": "true or false",
    "dict": "a mapping",
    "float": "a finite number",
    "int": "a whole number",
    "list": "a list",
    "str": "text",
    "tuple": "a list",
    "NoneType": "null",
}


_REMOVED = {"tpu": [("name", "local"), ("zone", None), ("project", None), ("connect_minutes", 10.0)]}
"""Section → name and default of options that no longer exist. `fit` wrote them into config.yaml of earlier runs."""


def _load_yaml(text: str, path: Any = "") -> Any:
    """Parses a value of the command line, or a file if it has a path."""
    try:
        value = yaml.load(text, OptionLoader)
    except (yaml.YAMLError, RecursionError) as error:
        place = f"{path}: " if str(path) else ""
        raise yaml.YAMLError(f"{place}{error_text(error)}") from None
    if str(path):
        return {} if value is None else _without_removed(value)
    # As in jsonargparse's loader: `C:` and `{a, b}` are text.
    no_values = isinstance(value, dict) and value and all(each is None for each in value.values())
    return text if no_values else value


def _without_removed(options: Any) -> Any:
    """Returns the options of a file without those of `_REMOVED` that have their default."""
    for section, removed in _REMOVED.items() if isinstance(options, dict) else ():
        if isinstance(options.get(section), dict):
            kept = {name: value for name, value in options[section].items() if (name, value) not in removed}
            options = options | {section: kept}
    return options


set_loader("yaml", _load_yaml, exceptions=(yaml.YAMLError,))
# For text where a number is expected; there is no public way to set it.
_loaders_dumpers.yaml_default_loader = OptionLoader


class Parser(ArgumentParser):
    """Names the option that was meant by a misspelt one, and says what values an option has."""

    def parse_args(self, *arguments: Any, **options: Any) -> Namespace:
        """Parses a command line and its files."""
        try:
            return super().parse_args(*arguments, **options)
        except UnicodeDecodeError as error:
            self.error(f"--config: the file is not UTF-8 text ({error})")

    def error(self, text: str, ex: Exception | None = None) -> NoReturn:
        """Prints or raises an error with a message for people."""
        super().error(message(self._explained(text)), ex)

    def values(self, parsed: Namespace) -> Namespace:
        """Returns the values of parsed options, the sections as dataclasses.

        Ends with an error if a section is no mapping, such as `train: 3`, or a value is null that cannot be.
        """
        for name in self.groups or ():
            if name in parsed and not isinstance(parsed[name], Namespace):
                value = "null" if parsed[name] is None else repr(parsed[name])
                self.error(
                    f"--{name} is {value}: must be a mapping of options to values; omit it for the defaults"
                )
        for action in self._actions:
            kind = getattr(action, "_typehint", None)
            # jsonargparse does not check the type of null, which `steps:` without a value is.
            if (
                kind is not None
                and action.default is not None
                and NoneType not in get_args(kind)
                and parsed.get(action.dest, action.default) is None
            ):
                self.error(f"--{action.dest} is null: must have a value; omit it for the default")
        return self.instantiate(parsed)

    def _explained(self, text: str) -> str:
        if match := re.match(r"unrecognized arguments: (--[\w.-]+)", text):
            return text + suggestion(match[1], self._option_string_actions)
        if match := re.match(r"(?:Group '([\w.]+)' does not accept option|Option) '([\w.-]+)'", text):
            option = "--" + ".".join(filter(None, match.groups()))
            if option == "--tpu.name":
                return f"there is no option {option}: run on the TPU VM itself, with --strategy tpu, or pjrt for slices"
            return f"there is no option {option}{suggestion(option, self._option_string_actions)}"
        if text.startswith("Problems parsing config: "):
            return text.removeprefix("Problems parsing config: ")
        if text.startswith("Unexpected config: "):
            return "the configuration is not a mapping of options to values"
        return _type_error(text) or text


def _type_error(text: str) -> str | None:
    """Returns jsonargparse's message about a value of a wrong type in words; None if it is another message."""
    option = re.match(r'Parser key "([\w.]+)":', text)
    value = re.search(r"Given value: (.*)", text, re.DOTALL) or re.search(r"Got value: (.*)", text, re.DOTALL)
    types = re.search(r"Subtypes: (.*)", text) or re.search(r"Expected a (.*?)(?:\. Got|$)", text)
    if not (option and value and types):
        return None
    rules, meant = [], ""
    for class_name, generic, choices in re.findall(
        r"<class '(\w+)'>|\b(dict|list)\[|Literal\[(.*?)\]", types[1]
    ):
        words = re.findall(r"'(.*?)'", choices)
        rules += words or [_TYPES[class_name or generic]]
        meant = meant or suggestion(value[1], words)
    if re.fullmatch(r"-?\d+\.0", value[1]) and _TYPES["int"] in rules:
        meant = f"; write {value[1].removesuffix('.0')}"
    rule = " or ".join(filter(None, [", ".join(rules[:-1]), rules[-1]]))
    return f"--{option[1]} is {value[1]!r}: must be {rule}{meant}"
