"""Puts JAX's splash attention kernels into a StableHLO program, in the place of network/splash_attention.py's calls.

This file uses private interfaces, as pjrt.py says.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tpu_trainer.config.mesh import DATA, MODEL
from tpu_trainer.devices.pjrt.operations import compute_by_device, custom_calls, device_type, replace_tuple
from tpu_trainer.devices.pjrt.sharding import Placement
from tpu_trainer.network.splash_attention import CALL, LANES

_BLOCKS = (1024, 512, 256, LANES)
"""Queries and keys of a block: the first that divides a row is used. A block of scores is 4 MB."""
_LEAST_BLOCK = 2 * LANES
_PRODUCTS = {"fwd": 2, "dq": 3, "dkv": 4}
"""Part of a kernel's name → the matrix products that it computes for each block."""
_HEADS: Placement = (DATA, None, MODEL, None)  # [B, L, H, D]
_STATISTICS: Placement = (DATA, MODEL, None)  # [B, H, L]
_SEGMENTS: Placement = (DATA, None)  # [B, L]
Array = tuple[tuple[int, ...], str]
"""Shape and dtype."""


def insert_splash_kernels(module: Any, axes: Mapping[str, int], *, interpret: bool = False) -> None:
    """Replaces the calls by kernels. Each device runs them on its own rows and heads.

    Args:
        module: The program.
        axes: Names and sizes of the mesh's axes. `data` must divide the rows, and `model` the key heads.
        interpret: Whether to insert operations of any platform that compute the same, for tests.
    """
    for call in custom_calls(module, CALL):
        _replace(module, call, axes, interpret=interpret)


def _replace(module: Any, call: Any, axes: Mapping[str, int], *, interpret: bool) -> None:
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import func

    is_forward = ir.StringAttr(call.attributes["call_target_name"]).value.endswith("forward")
    config = ir.StringAttr(call.attributes["backend_config"]).value
    tuple_type = ir.TupleType(call.results[0].type)
    kinds = [tuple_type.get_type(number) for number in range(tuple_type.num_types)]
    placements = [_HEADS] * 3 if is_forward else [*[_HEADS] * 4, _STATISTICS, _HEADS]
    if len(call.operands) > len(placements):
        placements.append(_SEGMENTS)
    result_placements = [_HEADS, _STATISTICS] if is_forward else [_HEADS] * 3
    types = [
        device_type(value.type, placement, axes)
        for value, placement in zip(call.operands, placements, strict=True)
    ]
    name = _insert_function(module, tuple(map(_array, types)), config, interpret=interpret)
    with ir.InsertionPoint(call), call.location:
        if max(axes.values()) == 1:
            results = func.CallOp(kinds, name, list(call.operands)).results
        else:
            results = compute_by_device(
                lambda parts, types: func.CallOp(types, name, parts).results,
                list(call.operands),
                placements,
                results=list(zip(kinds, result_placements, strict=True)),
                axes=axes,
            )
    replace_tuple(call, results)


def _array(kind: Any) -> Array:
    from jaxlib.mlir import ir

    tensor = ir.RankedTensorType(kind)
    names = {"bf16": "bfloat16", "f32": "float32", "i32": "int32"}
    return tuple(tensor.shape), names[str(tensor.element_type)]


def _insert_function(module: Any, arrays: tuple[Array, ...], config: str, *, interpret: bool) -> str:
    """Inserts JAX's function of a pass into a module, if it is not there yet, and returns its name."""
    from jaxlib.mlir import ir

    prefix = (
        "splash_"
        + "_".join("x".join(map(str, shape)) + kind for shape, kind in arrays)
        + "".join(c if c.isalnum() else "_" for c in config)
    )
    name = f"{prefix}.main"
    symbols = ir.SymbolTable(module.operation)
    if name in symbols:
        return name
    functions = ir.Module.parse(_lowered(arrays, config, interpret), module.context)

    def rename(operation: ir.Operation) -> ir.WalkResult:
        if operation.name == "func.call":
            callee = ir.FlatSymbolRefAttr(operation.attributes["callee"]).value
            operation.attributes["callee"] = ir.FlatSymbolRefAttr.get(f"{prefix}.{callee}")
        return ir.WalkResult.ADVANCE

    functions.operation.walk(rename)
    for function in functions.body.operations:
        operation = function.operation
        own_name = ir.StringAttr(operation.attributes["sym_name"]).value
        operation.attributes["sym_name"] = ir.StringAttr.get(f"{prefix}.{own_name}", module.context)
        operation.attributes["sym_visibility"] = ir.StringAttr.get("private", module.context)
        for attribute in ("arg_attrs", "res_attrs"):
            if attribute in operation.attributes:
                del operation.attributes[attribute]
        operation.clone(ir.InsertionPoint(module.body))
    return name


@functools.cache
def _lowered(arrays: tuple[Array, ...], config: str, interpret: bool) -> bytes:
    """Returns JAX's function of a pass as MLIR's bytecode."""
    import jax
    import numpy as np
    from jax._src.interpreters import mlir

    with jax.enable_x64(False):
        function = splash_function(arrays, **json.loads(config), interpret=interpret)
        specs = [jax.ShapeDtypeStruct(shape, np.dtype(kind)) for shape, kind in arrays]
        platform = "cpu" if interpret else "tpu"
        lowered = jax.jit(function).trace(*specs).lower(lowering_platforms=(platform,))
    module = lowered.compiler_ir("stablehlo")
    if not interpret:
        _estimate_costs(module, arrays, **json.loads(config))
    return mlir.module_to_bytecode(module)


def _estimate_costs(
    module: Any, arrays: Sequence[Array], *, causal: bool, window: int | None, soft_cap: float | None
) -> None:
    """Tells the compiler what the kernels cost, for its schedule and reports; the arguments are splash_function's."""
    import numpy as np
    from jaxlib.mlir import ir

    (rows, length, heads, size), _ = arrays[0]
    kernel = _kernel(length, heads, causal, window, soft_cap, False)
    blocks = int(np.count_nonzero(kernel.fwd_mask_info.block_mask))
    scores = rows * heads * blocks * kernel.kwargs["block_sizes"].block_q ** 2
    for call in custom_calls(module, "tpu_custom_call"):
        name = ir.StringAttr(call.attributes["kernel_name"]).value
        products = next(count for part, count in _PRODUCTS.items() if part in name)
        config = json.loads(ir.StringAttr(call.attributes["backend_config"]).value)
        config["custom_call_config"]["cost_estimate"] = {
            "flops": 2 * size * scores * products,
            "transcendentals": scores,
            "bytes_accessed": sum(
                math.prod(value.type.shape) * value.type.element_type.width // 8
                for value in (*call.operands, *call.results)
            ),
        }
        with call.context:
            call.attributes["backend_config"] = ir.StringAttr.get(json.dumps(config))


def splash_function(
    arrays: Sequence[Array],
    *,
    causal: bool,
    window: int | None,
    soft_cap: float | None,
    interpret: bool = False,
) -> Callable[..., Any]:
    """Returns the JAX function of a call, forward or backward.

    Args:
        arrays: Of the operands; see network/splash_attention.py.
        causal: See attend_in_splash.
        window: Of the layer.
        soft_cap: See attend_in_splash.
        interpret: See insert_splash_kernels.
    """
    import jax
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash

    (_, length, heads, _), _ = arrays[0]
    kernel = _kernel(length, heads, causal, window, soft_cap, interpret)

    def by_heads(array: Any) -> Any:
        return array.swapaxes(1, 2)

    def segments(operands: Sequence[Any]) -> Any:
        return splash.SegmentIds(operands[0], operands[0]) if operands else None

    def forward(query: Any, key: Any, value: Any, *others: Any) -> Any:
        def row(query: Any, key: Any, value: Any, *others: Any) -> Any:
            return kernel(query, key, value, segments(others))

        output, (statistics,) = jax.vmap(row)(by_heads(query), by_heads(key), by_heads(value), *others)
        return by_heads(output), statistics

    def backward(
        query: Any, key: Any, value: Any, output: Any, statistics: Any, d_output: Any, *others: Any
    ) -> Any:
        options = kernel.kwargs

        def row(
            query: Any, key: Any, value: Any, output: Any, statistics: Any, d_output: Any, *others: Any
        ) -> Any:
            values = (query, key, value, segments(others), None, output, statistics)
            gradients = splash._splash_attention_bwd(
                False,
                options["mask_value"],
                options["is_mqa"],
                options["block_sizes"],
                None,
                options["mask_function"],
                soft_cap,
                interpret,
                (*values, kernel.dq_mask_info, kernel.dkv_mask_info),
                d_output,
            )
            return gradients[3:6]

        arrays = (*map(by_heads, (query, key, value, output)), statistics, by_heads(d_output))
        return tuple(map(by_heads, jax.vmap(row)(*arrays, *others)))

    return forward if len(arrays) < 6 else backward


def _kernel(
    length: int, heads: int, causal: bool, window: int | None, soft_cap: float | None, interpret: bool
) -> Any:
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    square = (length, length)
    if window is not None and window < length:
        mask = masks.LocalMask(square, (window - 1, 0 if causal else window - 1), 0)
    else:
        mask = masks.CausalMask(square) if causal else masks.FullMask(square)
    # Larger blocks than the window would compute mostly scores that no query sees.
    largest = _BLOCKS[0] if window is None else max(window, _LEAST_BLOCK)
    block = next(block for block in _BLOCKS if length % block == 0 and (block <= largest))
    sizes = splash.BlockSizes(
        block_q=block,
        block_kv=block,
        block_q_dkv=block,
        block_kv_dkv=block,
        block_q_dq=block,
        block_kv_dq=block,
    )
    return splash.make_splash_mha(
        masks.MultiHeadMask([mask] * heads),
        block_sizes=sizes,
        save_residuals=True,
        attn_logits_soft_cap=soft_cap,
        head_shards=1,
        q_seq_shards=1,
        interpret=interpret,
    )
