"""Lowers a tf.function to StableHLO, in the form that XLA's compilers outside of TensorFlow accept.

This file uses private interfaces, as pjrt.py says.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tpu_trainer.devices.pjrt.cudnn_calls import declare_layouts
from tpu_trainer.devices.pjrt.graph_digest import graph_digest
from tpu_trainer.devices.pjrt.operations import attribute_names, main_function

Specs = Mapping[str, tf.TensorSpec]
FORMAT_VERSION = "1.9.0"
"""The oldest version of StableHLO with all operations that TensorFlow 2.20 emits."""
_DTYPES = {"f32": "float32", "f64": "float64", "bf16": "bfloat16", "i1": "bool", "i8": "int8", "i32": "int32",
           "i64": "int64", "ui32": "uint32", "ui64": "uint64"}  # fmt: skip
Array = tuple[tuple[int, ...], str]
"""Shape and dtype."""


@dataclass(frozen=True, kw_only=True)
class Lowered:
    """A program as a portable StableHLO artifact. Its arguments are the batch, then the captured values."""

    artifact: bytes
    arguments: tuple[Array, ...]
    results: tuple[Array, ...]
    aliases: dict[int, int]
    """Number of a variable's argument → number of the result with its new value."""


def flat_function(function: Callable[[dict[str, tf.Tensor]], Any], specs: Specs) -> Any:
    """Returns a tf.function of the batch's tensors: TensorFlow does not lower functions of nested structures."""

    def flat(*values: tf.Tensor) -> Any:
        _make_constants_of_tensors(tf.compat.v1.get_default_graph())
        return function(dict(zip(specs, values, strict=True)))

    return tf.function(flat, jit_compile=True, autograph=False)


def _make_constants_of_tensors(graph: Any) -> None:
    """Makes a function contain the tensors that it uses, such as tables of positions, instead of taking them."""
    capture, constants = graph.capture, {}

    def captured(tensor: Any, name: str | None = None, **options: Any) -> Any:
        if not hasattr(tensor, "numpy") or tensor.dtype in (tf.resource, tf.variant):
            return capture(tensor, name=name, **options)
        if tensor.ref() not in constants:
            with graph.as_default(), tf.control_dependencies(None):
                constants[tensor.ref()] = tf.constant(tensor.numpy())
        return constants[tensor.ref()]

    graph.capture = captured


def parse_artifact(artifact: bytes, context: Any) -> Any:
    """Returns the StableHLO module that TensorFlow has lowered, without operations that only TensorFlow knows."""
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    module = stablehlo.deserialize_portable_artifact(context, artifact)
    operations = []

    def visit(operation: ir.Operation) -> ir.WalkResult:
        if operation.name in ("mhlo.copy", "mhlo.erf"):
            operations.append(operation)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    for operation in operations:
        # A copy is an identity, which XLA's importer rejects.
        value = operation.operands[0] if operation.name == "mhlo.copy" else _erf_call(operation)
        operation.results[0].replace_all_uses_with(value)
        operation.erase()
    return module


def _erf_call(operation: Any) -> Any:
    """Returns the result of an error function in the form in which portable artifacts have it."""
    from jaxlib.mlir import ir

    with ir.InsertionPoint(operation), operation.location:
        attributes = {
            "call_target_name": ir.StringAttr.get("mhlo.erf"),
            "mhlo.attributes": ir.DictAttr.get({}),
            "mhlo.version": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), 1),
        }
        return ir.Operation.create(
            "stablehlo.custom_call",
            results=[operation.results[0].type],
            operands=list(operation.operands),
            attributes=attributes,
        ).results[0]


class Program:
    """A traced function of a batch, and the values that it captures."""

    def __init__(self, function: Callable[[dict[str, tf.Tensor]], Any], specs: Specs) -> None:
        """Traces `function`. It may read and assign variables, and must return a single tensor or a tuple of them."""
        self._specs = specs
        self._function = flat_function(function, specs)
        concrete = self._function.get_concrete_function(*specs.values())
        by_handle = {variable.handle.ref(): variable for variable in concrete.graph.variables}
        captured = [by_handle.get(value.ref()) for value in concrete.captured_inputs]
        if any(variable is None for variable in captured):
            raise RuntimeError(f"the program captures tensors: {concrete.captured_inputs}")
        self.captured: list[tf.Variable] = captured
        """The variables that it uses, in the order of the program's arguments after the batch."""
        self.graph: tf.Graph = concrete.graph

    def digest(self) -> str:
        """Returns a hash of the traced graph. It does not depend on the process."""
        return graph_digest(self.graph, self.captured)

    def lower(self) -> Lowered:
        """Lowers the function, including its variables and their donation. Takes seconds to minutes."""
        from jax._src.interpreters import mlir
        from jaxlib.mlir import ir
        from jaxlib.mlir.dialects import stablehlo

        raw = self._function.experimental_get_compiler_ir(*self._specs.values())(stage="stablehlo_serialized")
        with mlir.make_ir_context() as context:
            module = parse_artifact(raw, context)
            declare_layouts(module)
            kind = ir.FunctionType(ir.TypeAttr(main_function(module).attributes["function_type"]).value)
            attributes = module.operation.attributes
            alias_text = (
                str(attributes["mhlo.input_output_alias"]) if "mhlo.input_output_alias" in attributes else ""
            )
            aliases = {
                int(argument): int(result)
                for argument, result in re.findall(
                    r"parameter_number = (\d+) : i64}, output_index = array<i64: (\d+)>", alias_text
                )
            }
            # JAX sets the donation itself.
            for name in attribute_names(module.operation):
                if name.startswith("mhlo."):
                    del attributes[name]
            lowered = Lowered(
                artifact=stablehlo.serialize_portable_artifact(module, FORMAT_VERSION),
                arguments=tuple(_array(str(each)) for each in kind.inputs),
                results=tuple(_array(str(each)) for each in kind.results),
                aliases=aliases,
            )
        self._check(lowered)
        return lowered

    def _check(self, lowered: Lowered) -> None:
        """Checks that the module's arguments are the batch and the captured values."""
        expected = [
            (tuple(value.shape.as_list()), value.dtype.name)
            for value in (*self._specs.values(), *self.captured)
        ]
        if list(lowered.arguments) != expected:
            raise RuntimeError(
                f"TensorFlow lowered the step with the arguments {lowered.arguments}, but {expected} was expected: "
                "this release is not supported"
            )
        for argument, result in lowered.aliases.items():
            if lowered.arguments[argument] != lowered.results[result]:
                raise RuntimeError(f"argument {argument} and its result {result} have different shapes")


def _array(text: str) -> Array:
    """tensor<8x64xi32> → ((8, 64), "int32")."""
    *sides, kind = text[text.index("<") + 1 : text.rindex(">")].split(",")[0].split("x")
    return tuple(map(int, sides)), _DTYPES[kind]
