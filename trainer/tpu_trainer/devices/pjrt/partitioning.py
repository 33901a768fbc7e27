"""Marks in a StableHLO program how a mesh divides what XLA's partitioner alone would divide badly, or not at all.

This file uses private interfaces, as pjrt.py says.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from tpu_trainer.config.mesh import MODEL, ROWS, MeshConfig
from tpu_trainer.devices.pjrt.cudnn_calls import divide_cudnn_calls
from tpu_trainer.devices.pjrt.operations import (
    attribute_names,
    compute_by_device,
    custom_calls,
    main_function,
    replace_tuple,
    sharding,
)
from tpu_trainer.devices.pjrt.sharding import Placement, gathered, is_sharded
from tpu_trainer.devices.pjrt.splash_kernels import insert_splash_kernels
from tpu_trainer.devices.pjrt.stablehlo import FORMAT_VERSION, Lowered
from tpu_trainer.network.cudnn_attention import CALLS
from tpu_trainer.network.division import PLACE
from tpu_trainer.network.splash_attention import CALL

# Operations of the optimizer. Their operands are divided in the same way.
_ELEMENTWISE = frozenset(
    f"stablehlo.{name}" for name in ("add", "compare", "divide", "multiply", "return", "select", "subtract")
) | {"func.return"}
_KERNEL = "tpu_custom_call"
# How the operands of network/attention_kernel.py's kernels are divided after the numbers of rows and of pairs of heads:
# threshold and scale; seeds [B, H / 2, 8, L]; keys [B, 2, L]; then arrays like the results, [B, L, H · 64].
_KERNEL_OPERANDS: tuple[Placement, ...] = (((),), ((),), (ROWS, (MODEL,), (), ()), (ROWS, (), ()))
_KERNEL_ARRAY: Placement = (ROWS, (), (MODEL,))


def partition(lowered: Lowered, arguments: Sequence[Placement], mesh: MeshConfig) -> Lowered:
    """Returns a program that gathers divided weights where it uses them, and whose kernels process a device's part.

    Args:
        lowered: The program.
        arguments: Placement of each argument.
        mesh: The mesh, with the size of each axis.
    """
    axes, keep = mesh.sizes, mesh.fsdp == "keep"
    divided = {
        number: placement
        for number, placement in enumerate(arguments)
        if is_sharded(placement)
        and lowered.arguments[number][1] == "float32"  # a batch's arrays are integers
    }
    has_devices = mesh.devices > 1
    gathers = has_devices and bool(divided)
    places = PLACE.encode() in lowered.artifact
    kernels = has_devices and _KERNEL.encode() in lowered.artifact
    cudnn = has_devices and CALLS.encode() in lowered.artifact
    splash = CALL.encode() in lowered.artifact
    if not (gathers or places or kernels or cudnn or splash):
        return lowered
    from jax._src.interpreters import mlir
    from jax._src.lib import _jax
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    with mlir.make_ir_context() as context, ir.Location.unknown():
        module = stablehlo.deserialize_portable_artifact(context, lowered.artifact)
        if gathers:
            gather_weights_at_use(module, divided, axes, keep=keep)
        if places:
            place_arrays(module, axes)
        if kernels:
            divide_kernels(module, axes)
        if cudnn:
            divide_cudnn_calls(module, axes)
        if splash:  # after the other kernels, whose names these have
            insert_splash_kernels(module, axes)
        artifact = _jax.mlir.serialize_portable_artifact(module, FORMAT_VERSION, True)
    return dataclasses.replace(lowered, artifact=artifact)


def place_arrays(module: Any, axes: Mapping[str, int]) -> None:
    """Replaces the calls of network/division.py by constraints of the arrays' placements."""
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import sdy

    for call in custom_calls(module, PLACE):
        placement = tuple(map(tuple, json.loads(ir.StringAttr(call.attributes["backend_config"]).value)))
        with ir.InsertionPoint(call), call.location:
            placed = sdy.ShardingConstraintOp(call.operands[0], sharding(placement, axes)).result
        call.results[0].replace_all_uses_with(placed)
        call.erase()


def gather_weights_at_use(
    module: Any, divided: Mapping[int, Placement], axes: Mapping[str, int], *, keep: bool
) -> None:
    """Makes devices gather their parts of a weight where the program multiplies with it or looks its rows up.

    XLA alone may instead divide activations by the dimension that divides the weight, and exchange these. The
    optimizer's elementwise operations stay divided. A loop over layers gathers the weights of one layer at a time.

    Args:
        module: The program.
        divided: Number of a weight's argument → its placement; see sharding.gathered.
        axes: Names and sizes of the mesh's axes.
        keep: Whether a weight is gathered once and keeps its memory until the backward pass has used it, or is gathered
            again for the backward pass. A stack of weights is then gathered before the loop over layers.
    """
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import sdy, stablehlo

    main = main_function(module)

    def constrained(value: ir.Value, placement: Placement) -> ir.Value:
        return sdy.ShardingConstraintOp(value, sharding(placement, axes)).result

    first_uses = set()
    later: dict[Any, ir.Value] = {}
    for number, value, placement, operation, place in _uses(main, divided, in_loops=not keep):
        key = (number, str(value.type), operation.block)
        # The backward pass of a loop is a loop of its own, in which all uses share a gather.
        is_in_loop = operation.block != main.regions[0].blocks[0]
        is_first = (number, operation.block) not in first_uses
        first_uses.add((number, operation.block))
        if (whole_weight := later.get(key)) is None:
            with ir.InsertionPoint(operation):
                if not (is_first or is_in_loop or keep):
                    # Without the barrier, XLA would merge this gather with the first one; without the placement of
                    # its result, it would gather before the barrier.
                    value = constrained(stablehlo.OptimizationBarrierOp([value]).results[0], placement)
                whole_weight = constrained(value, gathered(placement))
            if keep or is_in_loop or not is_first:
                later[key] = whole_weight
        operation.operands[place] = whole_weight


def _uses(main: Any, divided: Mapping[int, Placement], *, in_loops: bool) -> list[tuple[Any, ...]]:
    """Returns the uses of weights other than elementwise.

    Args:
        main: The function whose arguments the weights are.
        divided: Number of a weight's argument → its placement.
        in_loops: Whether to look for them in loops; otherwise, the loop is the use.

    Returns:
        Number of the weight's argument, the value that is used, its placement, the operation, number of the operand.
    """
    from jaxlib.mlir import ir

    arguments = main.regions[0].blocks[0].arguments
    weights = {arguments[number]: (number, placement) for number, placement in divided.items()}
    uses = []

    def visit(operation: ir.Operation) -> ir.WalkResult:
        for place, value in enumerate(operation.operands):
            if value not in weights:
                continue
            number, placement = weights[value]
            # A slice is one of the undivided layers, and a reshape removes their axis. Or it changes nothing: so loops
            # return their constants.
            # In loops, network/stack.py adds 0.
            if operation.name in ("stablehlo.convert", "stablehlo.dynamic_slice") or (
                operation.name == "stablehlo.add" and operation.block != main.regions[0].blocks[0]
            ):
                weights[operation.results[0]] = number, placement
            elif operation.name == "stablehlo.reshape" and (removed := _removed_axes(operation)) is not None:
                weights[operation.results[0]] = number, placement[removed:]
            elif operation.name == "stablehlo.while" and in_loops and _gathers_within(operation, place):
                weights[operation.regions[1].blocks[0].arguments[place]] = number, placement
            elif operation.name not in _ELEMENTWISE:
                uses.append((number, value, placement, operation, place))
        return ir.WalkResult.ADVANCE

    main.operation.walk(visit, ir.WalkOrder.PRE_ORDER)
    return uses


def _removed_axes(reshape: Any) -> int | None:
    """Returns whether a reshape removes the first axis (1) or changes nothing (0); None: it does something else."""
    before, after = reshape.operands[0].type.shape, reshape.results[0].type.shape
    removed = len(before) - len(after)
    return removed if removed in (0, 1) and before[removed:] == after else None


def _gathers_within(loop: Any, place: int) -> bool:
    """Returns whether to gather an operand in each iteration: over micro-batches, or over layers that use a slice.

    A loop over the chunks of the loss uses the whole operand each time: it is gathered before.
    """
    (body,) = loop.regions[1].blocks
    return any(each.operation.name == "stablehlo.while" for each in body.operations) or any(
        use.owner.name == "stablehlo.dynamic_slice" for use in body.arguments[place].uses
    )


def divide_kernels(module: Any, axes: Mapping[str, int]) -> None:
    """Makes each device run the attention kernels on its own rows and heads.

    XLA cannot look into a kernel: alone, it would gather the operands and let each device process all.

    Args:
        module: The program, without other kernels.
        axes: Names and sizes of the mesh's axes. ROWS must divide the rows, and `model` the pairs of heads.
    """
    for kernel in custom_calls(module, _KERNEL):
        _divide(kernel, axes)


def _divide(kernel: Any, axes: Mapping[str, int]) -> None:
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    def constant(kind: ir.Type, number: int) -> ir.Value:
        value = ir.IntegerAttr.get(ir.RankedTensorType(kind).element_type, number)
        return stablehlo.ConstantOp(ir.DenseElementsAttr.get_splat(kind, value)).result

    rows, pairs, *arrays = kernel.operands
    (result,) = kernel.results
    is_tuple = str(result.type).startswith("tuple<")  # as which TensorFlow lowers several results
    kinds = [result.type]
    if is_tuple:
        kinds = [ir.TupleType(result.type).get_type(i) for i in range(ir.TupleType(result.type).num_types)]
    placements = [*_KERNEL_OPERANDS, *[_KERNEL_ARRAY] * (len(arrays) - len(_KERNEL_OPERANDS))]

    def compute(parts: list[Any], types: list[Any]) -> list[Any]:
        own_rows, own_pairs = ir.RankedTensorType(parts[2].type).shape[:2]
        attributes = {
            name: kernel.attributes[name] for name in attribute_names(kernel) if name != "xla_shape"
        }
        attributes["backend_config"] = _cost_of_device(attributes["backend_config"], axes)
        operands = [constant(rows.type, own_rows), constant(pairs.type, own_pairs), *parts]
        return ir.Operation.create(
            kernel.name, results=types, operands=operands, attributes=attributes
        ).results

    with ir.InsertionPoint(kernel):
        values = compute_by_device(
            compute, arrays, placements, results=[(kind, _KERNEL_ARRAY) for kind in kinds], axes=axes
        )
    if is_tuple:
        replace_tuple(kernel, values)
    else:
        result.replace_all_uses_with(values[0])
        kernel.erase()


def _cost_of_device(backend_config: Any, axes: Mapping[str, int]) -> Any:
    """Divides a kernel's estimate of its cost, which schedules and reports of the compiler use, by the devices."""
    from jaxlib.mlir import ir

    config = json.loads(ir.StringAttr(backend_config).value)
    cost = config["custom_call_config"]["cost_estimate"]
    devices = math.prod(axes.values())
    config["custom_call_config"]["cost_estimate"] = {name: value // devices for name, value in cost.items()}
    return ir.StringAttr.get(json.dumps(config))
