"""YAML of options, without surprises. Needs PyYAML, on which the programs depend, but not the reader."""

from __future__ import annotations

import re
from typing import Any

import yaml


class OptionLoader(yaml.SafeLoader):
    """YAML with decimal numbers, and without repeated keys, tags of values and mappings that contain themselves.

    In PyYAML, 1e-4 is text, 010 is 8, 10:15 is 615, and the last of several equal keys counts.
    """

    def compose_mapping_node(self, anchor: str | None) -> yaml.MappingNode:
        """Returns a mapping as it is written: before keys are merged into it (`<<: *other`)."""
        node = super().compose_mapping_node(anchor)
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                line = key.start_mark.line + 1
                if key.value in lines:
                    raise yaml.YAMLError(
                        f"line {line}: {key.value!r} is already set in line {lines[key.value]}; remove one"
                    )
                lines[key.value] = line
        return node

    def compose_scalar_node(self, anchor: str | None) -> yaml.ScalarNode:
        """Returns a value; PyYAML's conversions of values with a tag, such as `!!int x`, raise any exception."""
        event = self.peek_event()
        if event.tag not in _VALUE_TAGS:
            line = event.start_mark.line + 1
            raise yaml.YAMLError(f"line {line}: {event.value!r} has the tag {event.tag!r}; remove it")
        return super().compose_scalar_node(anchor)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Returns a value with all that it contains, which refuses one that contains itself (`&a [*a]`)."""
        return super().construct_object(node, deep=True)

    def construct_integer(self, node: yaml.ScalarNode) -> int:
        """Returns a decimal number."""
        return int(self.construct_scalar(node).replace("_", ""))


_INT, _FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
_VALUE_TAGS = (None, "!", "tag:yaml.org,2002:str")
_KEPT = {f"tag:yaml.org,2002:{name}" for name in ("bool", "merge", "null")}
OptionLoader.yaml_implicit_resolvers = {
    letter: [(tag, pattern) for tag, pattern in resolvers if tag in _KEPT]
    for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
OptionLoader.add_implicit_resolver(_INT, re.compile(r"^[-+]?[0-9][0-9_]{0,99}$"), list("-+0123456789"))
OptionLoader.add_implicit_resolver(
    _FLOAT,
    re.compile(
        r"""^(?:[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?
        |[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+
        |[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$""",
        re.VERBOSE,
    ),
    list("-+.0123456789"),
)
OptionLoader.add_constructor(_INT, OptionLoader.construct_integer)


def error_text(error: Exception) -> str:
    """Returns the message of an error in YAML, without PyYAML's name of the input."""
    return str(error).replace('in "<unicode string>", ', "in ")
