"""A hash of a traced graph that is equal in every process.

TensorFlow's names of operations and functions contain numbers that count what the process has created before. So a name
counts only as the position of what it names.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

# Attributes whose values are names or counters, without effect on what is lowered: of the operation to share a device
# with, of a gradient's registration, of an argument.
_NAMES = frozenset(("_class", "_gradient_op_type", "_user_specified_name"))
_CONTROL = "^"


def graph_digest(graph: tf.Graph, captured: Sequence[tf.Variable]) -> str:
    """Returns a hash of a function's operations, attributes, shapes, edges and constants, and of functions it calls.

    Args:
        graph: Of a concrete function.
        captured: Its variables, in the order of their arguments. Only their shapes and dtypes count.
    """
    definition = graph.as_graph_def()
    functions = _Functions(definition.library.function)
    body = _Body(functions, {node.name: f"{number}" for number, node in enumerate(definition.node)})
    nodes = body.nodes(definition.node)
    inputs = [body.edge(tensor.name) for tensor in graph.inputs]
    outputs = [body.edge(tensor.name) for tensor in graph.outputs]
    variables = [(variable.shape.as_list(), variable.dtype.name) for variable in captured]
    return _hash([nodes, inputs, outputs, variables])


class _Functions:
    """Digests of a library's functions, each computed when a node first refers to it."""

    def __init__(self, definitions: Iterable[Any]) -> None:
        self._definitions = {each.signature.name: each for each in definitions}
        self._digests: dict[str, str] = {}

    def digest(self, name: str) -> str:
        if name not in self._digests:
            # TensorFlow does not lower recursive functions; one that is not in the library is an operation.
            definition = self._definitions.get(name)
            self._digests[name] = name if definition is None else self._digest(definition)
        return self._digests[name]

    def _digest(self, function: Any) -> str:
        arguments = function.signature.input_arg
        places = {each.name: f"argument {number}" for number, each in enumerate(arguments)}
        places |= {node.name: f"{number}" for number, node in enumerate(function.node_def)}
        body = _Body(self, places)
        signature = [list(map(_unnamed, arguments)), list(map(_unnamed, function.signature.output_arg))]
        results = [body.edge(function.ret[each.name]) for each in function.signature.output_arg]
        effects = sorted(body.edge(name) for name in function.control_ret.values())
        attributes = [body.attributes(function.arg_attr[n].attr) for n in range(len(arguments))]
        return _hash(
            [
                body.nodes(function.node_def),
                body.attributes(function.attr),
                signature,
                attributes,
                results,
                effects,
            ]
        )


class _Body:
    """The nodes of a graph or function, with positions instead of names."""

    def __init__(self, functions: _Functions, places: Mapping[str, str]) -> None:
        self._functions = functions
        self._places = places

    def nodes(self, nodes: Iterable[Any]) -> list[Any]:
        digests = []
        for node in nodes:
            data = [self.edge(name) for name in node.input if not name.startswith(_CONTROL)]
            # TensorFlow orders them by name.
            control = sorted(self.edge(name[1:]) for name in node.input if name.startswith(_CONTROL))
            digests.append([node.op, data, control, self.attributes(node.attr)])
        return digests

    def edge(self, name: str) -> str:
        """Returns an edge by position: NODE, NODE:NUMBER, or in a function NODE:OUTPUT:NUMBER or ARGUMENT."""
        node, _, output = name.partition(":")
        return f"{self._places[node]}:{output or 0}"

    def attributes(self, attributes: Mapping[str, Any]) -> list[tuple[str, Any]]:
        return [(name, self._value(attributes[name])) for name in sorted(attributes) if name not in _NAMES]

    def _value(self, value: Any) -> Any:
        kind = value.WhichOneof("value")
        if kind == "func":
            return self._function(value.func)
        if kind == "list" and value.list.func:
            return [self._function(each) for each in value.list.func]
        return _bytes(value)

    def _function(self, value: Any) -> list[Any]:
        return [self._functions.digest(value.name), self.attributes(value.attr)]


def _unnamed(argument: Any) -> str:
    copy = type(argument)()
    copy.CopyFrom(argument)
    copy.ClearField("name")
    return _bytes(copy)


def _bytes(message: Any) -> str:
    return message.SerializeToString(deterministic=True).hex()


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()
