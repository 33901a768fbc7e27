"""Marks in a StableHLO program how a mesh divides what XLA's partitioner alone would divide badly, or not at all.

This file uses private interfaces, as pjrt.py says.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tpu_trainer.config.mesh import DATA, MODEL
from tpu_trainer.training.sharding import Placement
from tpu_trainer.training.stablehlo import FORMAT_VERSION, Lowered, attribute_names, main_function

# Operations of the optimizer. Their operands are divided in the same way.
_ELEMENTWISE = frozenset(
    f"stablehlo.{name}" for name in ("add", "compare", "divide", "multiply", "return", "select", "subtract")
) | {"func.return"}
_KERNEL = "tpu_custom_call"
# How the operands of network/attention_kernel.py's kernels are divided after the numbers of rows and of pairs of heads:
# threshold and scale; seeds [B, H / 2, 8, L]; keys [B, 2, L]; then arrays like the results, [B, L, H · 64].
_KERNEL_OPERANDS: tuple[Placement, ...] = ((None,), (None,), (DATA, MODEL, None, None), (DATA, None, None))
_KERNEL_ARRAY: Placement = (DATA, None, MODEL)


def partition(
    lowered: Lowered, arguments: Sequence[Placement], *, data: int, model: int, keep: bool
) -> Lowered:
    """Returns a program that gathers divided weights where it uses them, and whose kernels process a device's part.

    Args:
        lowered: The program.
        arguments: Placement of each argument.
        data: Size of the axis.
        model: Size of the other axis.
        keep: Whether gathered weights are kept until the backward pass.
    """
    divided = {
        number: placement
        for number, placement in enumerate(arguments)
        if DATA in placement and lowered.arguments[number][1] == "float32"  # arrays of a batch are integers
    }
    axes = {DATA: data, MODEL: model}
    artifact = lowered.artifact
    if data > 1 and divided:
        artifact = gather_weights_at_use(artifact, divided, axes, keep=keep)
    if data * model > 1 and _KERNEL.encode() in artifact:
        artifact = divide_kernels(artifact, axes)
    return dataclasses.replace(lowered, artifact=artifact)


def gather_weights_at_use(
    artifact: bytes, divided: Mapping[int, Placement], axes: Mapping[str, int], *, keep: bool
) -> bytes:
    """Makes devices gather their parts of a weight where the program multiplies with it or looks its rows up.

    XLA alone may instead divide activations by the dimension that divides the weight, and exchange these. The
    optimizer's elementwise operations stay divided.

    Args:
        artifact: Of a `Lowered`.
        divided: Number of a weight's argument → its placement, of which the axis `data` is gathered.
        axes: Names and sizes of the mesh's axes.
        keep: Whether a weight is gathered once and keeps its memory until the backward pass has used it, or is gathered
            again for the backward pass.
    """
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import sdy, stablehlo

    def edit(module: ir.Module) -> None:
        main = main_function(module)
        numbers = {main.regions[0].blocks[0].arguments[number]: number for number in divided}
        uses = []

        def visit(operation: ir.Operation) -> ir.WalkResult:
            for place, value in enumerate(operation.operands):
                if (number := numbers.get(value)) is None:
                    continue
                if operation.name == "stablehlo.convert":
                    numbers[operation.results[0]] = number
                elif operation.name == "stablehlo.while":
                    numbers[operation.regions[1].blocks[0].arguments[place]] = number
                elif operation.name not in _ELEMENTWISE:
                    uses.append((number, value, operation, place))
            return ir.WalkResult.ADVANCE

        main.operation.walk(visit, ir.WalkOrder.PRE_ORDER)

        def constrained(value: ir.Value, placement: Placement) -> ir.Value:
            return sdy.ShardingConstraintOp(value, _sharding(placement, axes)).result

        forward = set()
        later: dict[Any, ir.Value] = {}
        for number, value, operation, place in uses:
            whole = tuple(None if axis == DATA else axis for axis in divided[number])
            key = (number, str(value.type), operation.block)
            first = (number, operation.block) not in forward
            forward.add((number, operation.block))
            if (gathered := later.get(key)) is None:
                with ir.InsertionPoint(operation):
                    if not (first or keep):
                        # Without the barrier, XLA would merge this gather with the first one; without the placement of
                        # its result, it would gather before the barrier.
                        value = constrained(
                            stablehlo.OptimizationBarrierOp([value]).results[0], divided[number]
                        )
                    gathered = constrained(value, whole)
                if keep or not first:
                    later[key] = gathered
            operation.operands[place] = gathered

    return _edited(artifact, edit)


def divide_kernels(artifact: bytes, axes: Mapping[str, int]) -> bytes:
    """Makes each device run the attention kernels on its own rows and heads.

    XLA cannot look into a kernel: alone, it would gather the operands and let each device process all.

    Args:
        artifact: Of a `Lowered`, without other kernels.
        axes: Names and sizes of the mesh's axes. `data` must divide the rows, and `model` the pairs of heads.
    """
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import sdy, stablehlo

    def of_device(kind: ir.Type, placement: Placement) -> ir.Type:
        tensor = ir.RankedTensorType(kind)
        sides = [
            side if axis is None else side // axes[axis]
            for side, axis in zip(tensor.shape, placement, strict=True)
        ]
        return ir.RankedTensorType.get(sides, tensor.element_type)

    def divide(kernel: ir.Operation) -> None:
        sizes, arrays = list(kernel.operands)[:2], list(kernel.operands)[2:]
        results = [result.type for result in kernel.results]
        tuples = [ir.TupleType(kind) for kind in results if str(kind).startswith("tuple<")]
        if tuples:  # as which TensorFlow lowers several results
            results = [tuples[0].get_type(number) for number in range(tuples[0].num_types)]
        placements = [*_KERNEL_OPERANDS, *[_KERNEL_ARRAY] * (len(arrays) - len(_KERNEL_OPERANDS))]
        rows, pairs = ir.RankedTensorType(arrays[2].type).shape[:2]
        with ir.InsertionPoint(kernel):
            manual = sdy.ManualComputationOp(
                results,
                arrays,
                sdy.TensorShardingPerValueAttr.get([_sharding(each, axes) for each in placements]),
                sdy.TensorShardingPerValueAttr.get([_sharding(_KERNEL_ARRAY, axes)] * len(results)),
                sdy.ManualAxesAttr.get([ir.StringAttr.get(name) for name in axes]),
            )
        own = [of_device(each.type, placement) for each, placement in zip(arrays, placements, strict=True)]
        block = ir.Block.create_at_start(manual.body, own)
        with ir.InsertionPoint(block):
            numbers = [
                stablehlo.ConstantOp(
                    ir.DenseElementsAttr.get_splat(each.type, ir.IntegerAttr.get(kind, number))
                ).result
                for each, number in zip(sizes, (rows // axes[DATA], pairs // axes[MODEL]), strict=True)
                for kind in [ir.RankedTensorType(each.type).element_type]
            ]
            divided = ir.Operation.create(
                kernel.name,
                results=[of_device(kind, _KERNEL_ARRAY) for kind in results],
                operands=[*numbers, *block.arguments],
                attributes={
                    name: kernel.attributes[name] for name in attribute_names(kernel) if name != "xla_shape"
                }
                | {"backend_config": _cost_of_device(kernel.attributes["backend_config"], axes)},
            )
            sdy.ReturnOp(divided.results)
        for use in list(kernel.results[0].uses) if tuples else ():
            element = use.owner.operation  # get_tuple_element
            number = ir.IntegerAttr(element.attributes["index"]).value
            element.results[0].replace_all_uses_with(manual.results[number])
            element.erase()
        if not tuples:
            kernel.results[0].replace_all_uses_with(manual.results[0])
        kernel.erase()

    def edit(module: ir.Module) -> None:
        kernels = []

        def visit(operation: ir.Operation) -> ir.WalkResult:
            if (
                operation.name == "stablehlo.custom_call"
                and ir.StringAttr(operation.attributes["call_target_name"]).value == _KERNEL
            ):
                kernels.append(operation)
            return ir.WalkResult.ADVANCE

        module.operation.walk(visit)
        for kernel in kernels:
            divide(kernel)

    return _edited(artifact, edit)


def _cost_of_device(backend_config: Any, axes: Mapping[str, int]) -> Any:
    """Divides a kernel's estimate of its cost, which schedules and reports of the compiler use, by the devices."""
    from jaxlib.mlir import ir

    config = json.loads(ir.StringAttr(backend_config).value)
    cost = config["custom_call_config"]["cost_estimate"]
    devices = axes[DATA] * axes[MODEL]
    config["custom_call_config"]["cost_estimate"] = {name: value // devices for name, value in cost.items()}
    return ir.StringAttr.get(json.dumps(config))


def _sharding(placement: Placement, axes: Mapping[str, int]) -> Any:
    from jaxlib.mlir.dialects import sdy

    mesh = sdy.MeshAttr.get([sdy.MeshAxisAttr.get(name, size) for name, size in axes.items()])
    dimensions = [[] if axis is None else [sdy.AxisRefAttr.get(axis)] for axis in placement]
    return sdy.TensorShardingAttr.get(
        mesh, [sdy.DimensionShardingAttr.get(each, is_closed=True) for each in dimensions]
    )


def _edited(artifact: bytes, edit: Callable[[Any], None]) -> bytes:
    from jax._src.interpreters import mlir
    from jax._src.lib import _jax
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    with mlir.make_ir_context() as context, ir.Location.unknown():
        module = stablehlo.deserialize_portable_artifact(context, artifact)
        edit(module)
        return _jax.mlir.serialize_portable_artifact(module, FORMAT_VERSION, True)
