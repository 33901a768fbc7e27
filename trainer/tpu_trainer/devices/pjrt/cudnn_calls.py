"""Completes network/cudnn_attention.py's calls of cuDNN in a StableHLO program: layouts, and each device's part.

This file uses private interfaces, as pjrt.py says.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from tpu_trainer.config.mesh import DATA, MODEL
from tpu_trainer.devices.pjrt.sharding import Placement
from tpu_trainer.devices.pjrt.stablehlo import (
    attribute_names,
    custom_calls,
    device_type,
    replace_tuple,
    shardings,
)
from tpu_trainer.network.cudnn_attention import CALLS, OUTPUT_LAYOUT

_INPUT: Placement = (DATA, None, MODEL, None)  # [B, L, H, D]
_OUTPUT: Placement = (DATA, MODEL, None, None)  # [B, H, L, D]
_STATISTICS: Placement = (DATA, MODEL, None)  # [B, H, L]


def declare_layouts(module: Any) -> None:
    """Declares how cuDNN stores the results of attention, with calls in the form of JAX's."""
    from jaxlib.mlir import ir

    calls = custom_calls(module, CALLS)
    for call in calls:
        tuple_type = ir.TupleType(call.results[0].type)
        kinds = [tuple_type.get_type(number) for number in range(tuple_type.num_types)]
        arrays = 1 if len(kinds) == 3 else 3  # then statistics, or the gradient of a bias
        layouts = [
            OUTPUT_LAYOUT if number < arrays else tuple(reversed(range(len(ir.RankedTensorType(kind).shape))))
            for number, kind in enumerate(kinds)
        ]
        attributes = {name: call.attributes[name] for name in attribute_names(call) if name != "xla_shape"}
        attributes["api_version"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), 2)
        attributes["result_layouts"] = ir.ArrayAttr.get(
            [ir.DenseIntElementsAttr.get(np.array(layout), type=ir.IndexType.get()) for layout in layouts]
        )
        with ir.InsertionPoint(call), call.location:
            declared = ir.Operation.create(
                call.name, results=kinds, operands=list(call.operands), attributes=attributes
            )
        replace_tuple(call, declared.results)


def divide_cudnn_calls(module: Any, axes: Mapping[str, int]) -> None:
    """Makes each device run cuDNN on its own rows and heads.

    XLA cannot look into a call: alone, it would gather the operands and let each device process all.

    Args:
        module: The program.
        axes: Names and sizes of the mesh's axes. `data` must divide the rows, and `model` the key heads.
    """
    for call in custom_calls(module, CALLS):
        _divide(call, axes)


def _divide(call: Any, axes: Mapping[str, int]) -> None:
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import sdy

    operands, kinds = list(call.operands), [result.type for result in call.results]
    is_forward = len(kinds) == 3
    placements = [_INPUT] * 3 if is_forward else [*[_INPUT] * 3, _STATISTICS, _INPUT]
    used = [_OUTPUT, _STATISTICS] if is_forward else [_OUTPUT] * 3
    results: list[Placement] = list(used)
    if len(operands) > (3 if is_forward else 6):
        rows = ir.RankedTensorType(operands[len(placements)].type).shape[0]
        bias: Placement = (None if rows == 1 else DATA, None, None, None)  # [1 or B, 1, L, L]
        placements.append(bias)
        if not is_forward:
            results.append(bias)
    if not is_forward:
        placements.append(_INPUT)  # the output
    results.append((None,))  # temporary memory
    types = [
        device_type(value.type, placement, axes)
        for value, placement in zip(operands, placements, strict=True)
    ]
    result_types = [
        device_type(kind, placement, axes) for kind, placement in zip(kinds, results, strict=True)
    ]
    with ir.InsertionPoint(call), call.location:
        # Nothing uses the gradient of a bias and the temporary memory.
        manual = sdy.ManualComputationOp(
            kinds[: len(used)],
            operands,
            shardings(placements, axes),
            shardings(used, axes),
            sdy.ManualAxesAttr.get([ir.StringAttr.get(name) for name in axes]),
        )
        block = ir.Block.create_at_start(manual.body, types)
        with ir.InsertionPoint(block):
            attributes = {name: call.attributes[name] for name in attribute_names(call)}
            attributes["backend_config"] = _config_of_device(attributes["backend_config"], axes)
            divided = ir.Operation.create(
                call.name, results=result_types, operands=list(block.arguments), attributes=attributes
            )
            sdy.ReturnOp(list(divided.results)[: len(used)])
    for result, value in zip(call.results, manual.results, strict=False):
        result.replace_all_uses_with(value)
    call.erase()


def _config_of_device(backend_config: Any, axes: Mapping[str, int]) -> Any:
    """Returns a call's configuration with the scores of a device, [B, H, L, L]."""
    from jaxlib.mlir import ir

    config = json.loads(ir.StringAttr(backend_config).value)
    scores = config["cudnn_fmha_backend_config"]["intermediate_tensor_shape"]
    rows, heads, *lengths = scores["dimensions"]
    scores["dimensions"] = [str(int(rows) // axes[DATA]), str(int(heads) // axes[MODEL]), *lengths]
    return ir.StringAttr.get(json.dumps(config))
