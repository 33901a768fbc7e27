"""Completes network/cudnn_attention.py's calls of cuDNN in a StableHLO program: layouts, and each device's part.

This file uses private interfaces, as pjrt.py says.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from tpu_trainer.config.mesh import MODEL, ROWS
from tpu_trainer.devices.pjrt.operations import (
    attribute_names,
    compute_by_device,
    custom_calls,
    device_type,
    replace_tuple,
)
from tpu_trainer.devices.pjrt.sharding import Placement, parts
from tpu_trainer.network.cudnn_attention import CALLS, OUTPUT_LAYOUT

_INPUT: Placement = (ROWS, (), (MODEL,), ())  # [B, L, H, D]
_OUTPUT: Placement = (ROWS, (MODEL,), (), ())  # [B, H, L, D]
_STATISTICS: Placement = (ROWS, (MODEL,), ())  # [B, H, L]


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
        axes: Names and sizes of the mesh's axes. ROWS must divide the rows, and `model` the key heads.
    """
    for call in custom_calls(module, CALLS):
        _divide(call, axes)


def _divide(call: Any, axes: Mapping[str, int]) -> None:
    from jaxlib.mlir import ir

    operands, kinds = list(call.operands), [result.type for result in call.results]
    is_forward = len(kinds) == 3
    placements = [_INPUT] * 3 if is_forward else [*[_INPUT] * 3, _STATISTICS, _INPUT]
    output = [] if is_forward else [_INPUT]  # the last operand of the backward pass
    bias: list[Placement] = []
    if len(operands) > len(placements) + len(output):
        rows = ir.RankedTensorType(operands[len(placements)].type).shape[0]
        bias.append((() if rows == 1 else ROWS, (), (), ()))  # [1 or B, 1, L, L]
    used = [_OUTPUT, _STATISTICS] if is_forward else [_OUTPUT] * 3
    # Nothing uses the gradient of a bias, and the temporary memory.
    unused: list[Placement] = [*([] if is_forward else bias), ((),)]
    unused_types = [
        device_type(kind, placement, axes) for kind, placement in zip(kinds[len(used) :], unused, strict=True)
    ]

    def compute(parts: list[Any], types: list[Any]) -> list[Any]:
        attributes = {name: call.attributes[name] for name in attribute_names(call)}
        attributes["backend_config"] = _config_of_device(attributes["backend_config"], axes)
        divided = ir.Operation.create(
            call.name, results=[*types, *unused_types], operands=parts, attributes=attributes
        )
        return list(divided.results)[: len(used)]

    with ir.InsertionPoint(call), call.location:
        values = compute_by_device(
            compute,
            operands,
            [*placements, *bias, *output],
            results=list(zip(kinds, used, strict=False)),
            axes=axes,
        )
    for result, value in zip(call.results, values, strict=False):
        result.replace_all_uses_with(value)
    call.erase()


def _config_of_device(backend_config: Any, axes: Mapping[str, int]) -> Any:
    """Returns a call's configuration with the scores of a device, [B, H, L, L]."""
    from jaxlib.mlir import ir

    config = json.loads(ir.StringAttr(backend_config).value)
    scores = config["cudnn_fmha_backend_config"]["intermediate_tensor_shape"]
    rows, heads, *lengths = scores["dimensions"]
    scores["dimensions"] = [str(int(rows) // parts(ROWS, axes)), str(int(heads) // axes[MODEL]), *lengths]
    return ir.StringAttr.get(json.dumps(config))
