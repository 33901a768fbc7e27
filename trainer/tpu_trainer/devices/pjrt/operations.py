"""Finding and replacing operations of a StableHLO program, and dividing their arrays over a mesh.

This file uses private interfaces, as pjrt.py says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tpu_trainer.devices.pjrt.sharding import Placement, parts


def main_function(module: Any) -> Any:
    """Returns a module's function `main`."""
    from jaxlib.mlir import ir

    return next(
        operation
        for operation in module.body.operations
        if operation.operation.name == "func.func"
        and ir.StringAttr(operation.attributes["sym_name"]).value == "main"
    )


def custom_calls(module: Any, prefix: str) -> list[Any]:
    """Returns the calls of custom functions whose names begin with `prefix` in a module."""
    from jaxlib.mlir import ir

    calls = []

    def visit(operation: ir.Operation) -> ir.WalkResult:
        if operation.name == "stablehlo.custom_call" and ir.StringAttr(
            operation.attributes["call_target_name"]
        ).value.startswith(prefix):
            calls.append(operation)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return calls


def attribute_names(operation: Any) -> list[str]:
    """Returns the names of an operation's attributes."""
    # Older releases of jaxlib iterate over pairs.
    return [each if isinstance(each, str) else each.name for each in operation.attributes]


def replace_tuple(operation: Any, values: Sequence[Any]) -> None:
    """Replaces the elements of an operation's result, a tuple, and removes the operation."""
    from jaxlib.mlir import ir

    for use in list(operation.results[0].uses):
        element = use.owner.operation  # get_tuple_element
        number = ir.IntegerAttr(element.attributes["index"]).value
        element.results[0].replace_all_uses_with(values[number])
        element.erase()
    operation.erase()


def device_type(kind: Any, placement: Placement, axes: Mapping[str, int]) -> Any:
    """Returns the type of a device's part of an array."""
    from jaxlib.mlir import ir

    tensor = ir.RankedTensorType(kind)
    sides = [
        side // parts(divided_by, axes) for side, divided_by in zip(tensor.shape, placement, strict=True)
    ]
    return ir.RankedTensorType.get(sides, tensor.element_type)


def sharding(placement: Placement, axes: Mapping[str, int]) -> Any:
    """Returns Shardy's form of a placement."""
    from jaxlib.mlir.dialects import sdy

    mesh = sdy.MeshAttr.get([sdy.MeshAxisAttr.get(name, size) for name, size in axes.items()])
    dimensions = [list(map(sdy.AxisRefAttr.get, divided_by)) for divided_by in placement]
    return sdy.TensorShardingAttr.get(
        mesh, [sdy.DimensionShardingAttr.get(each, is_closed=True) for each in dimensions]
    )


def shardings(placements: Sequence[Placement], axes: Mapping[str, int]) -> Any:
    """Returns Shardy's form of the placements of several arrays."""
    from jaxlib.mlir.dialects import sdy

    return sdy.TensorShardingPerValueAttr.get([sharding(placement, axes) for placement in placements])


def compute_by_device(
    compute: Callable[[list[Any], list[Any]], Sequence[Any]],
    operands: Sequence[Any],
    placements: Sequence[Placement],
    *,
    results: Sequence[tuple[Any, Placement]],
    axes: Mapping[str, int],
) -> list[Any]:
    """Inserts a computation that each device does with its own parts of arrays. XLA does not divide it further.

    Args:
        compute: Inserts it: maps a device's parts of the operands, and the types of its parts of the results, to these.
        operands: The arrays.
        placements: Of the operands.
        results: Type and placement of each result.
        axes: Names and sizes of the mesh's axes.

    Returns:
        The results, whole.
    """
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import sdy

    kinds, result_placements = zip(*results, strict=True)
    manual = sdy.ManualComputationOp(
        list(kinds),
        list(operands),
        shardings(placements, axes),
        shardings(result_placements, axes),
        sdy.ManualAxesAttr.get([ir.StringAttr.get(name) for name in axes]),
    )
    types = [
        device_type(each.type, placement, axes) for each, placement in zip(operands, placements, strict=True)
    ]
    block = ir.Block.create_at_start(manual.body, types)
    with ir.InsertionPoint(block):
        result_types = [device_type(kind, placement, axes) for kind, placement in results]
        sdy.ReturnOp(list(compute(list(block.arguments), result_types)))
    return list(manual.results)
