"""Puts JAX's splash attention kernels into a StableHLO program, in the place of network/splash_attention.py's calls.

This file uses private interfaces, as pjrt.py says.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tpu_trainer.config.mesh import MODEL, ROWS, SEQUENCE
from tpu_trainer.devices.pjrt.operations import compute_by_device, custom_calls, device_type, replace_tuple
from tpu_trainer.devices.pjrt.sharding import Placement
from tpu_trainer.network.division import balanced_order
from tpu_trainer.network.splash_attention import CALL, LANES

_BLOCKS = (1024, 512, 256, LANES)
"""Queries and keys of a block: the first that divides a row is used. A block of scores is 4 MB."""
_LEAST_BLOCK = 2 * LANES
_PRODUCTS = {"fwd": 2, "dq": 3, "dkv": 4}
"""Part of a kernel's name → the matrix products that it computes for each block."""
_QUERIES: Placement = (ROWS, (SEQUENCE,), (MODEL,), ())  # [B, L, H, D]
_KEYS: Placement = (ROWS, (), (MODEL,), ())  # [B, L, K, D]
_STATISTICS: Placement = (ROWS, (MODEL,), (SEQUENCE,))  # [B, H, L]
_SEGMENTS: tuple[Placement, ...] = ((ROWS, (SEQUENCE,)), (ROWS, ()))  # [B, L], of queries and of keys
_MASK_ARRAYS = ("data_next", "mask_next", "block_mask", "q_sequence")
Array = tuple[tuple[int, ...], str]
"""Shape and dtype."""


def insert_splash_kernels(module: Any, axes: Mapping[str, int], *, interpret: bool = False) -> None:
    """Replaces the calls by kernels. Each device runs them on its own rows and heads.

    Args:
        module: The program.
        axes: Names and sizes of the mesh's axes. ROWS must divide the rows, and `model` the key heads.
        interpret: Whether to insert operations of any platform that compute the same, for tests.
    """
    for call in custom_calls(module, CALL):
        _replace(module, call, axes, interpret=interpret)


def _replace(module: Any, call: Any, axes: Mapping[str, int], *, interpret: bool) -> None:
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import func, stablehlo

    is_forward = ir.StringAttr(call.attributes["call_target_name"]).value.endswith("forward")
    config = ir.StringAttr(call.attributes["backend_config"]).value
    tuple_type = ir.TupleType(call.results[0].type)
    kinds = [tuple_type.get_type(number) for number in range(tuple_type.num_types)]
    placements = [_QUERIES, _KEYS, _KEYS]
    result_placements = [_QUERIES, _STATISTICS]
    if not is_forward:
        placements += [_QUERIES, _STATISTICS, _QUERIES]
        # Each device has its own part of the sums of keys' and values' gradients.
        parts = ((SEQUENCE,),) if axes[SEQUENCE] > 1 else ()
        result_placements = [_QUERIES, (*parts, *_KEYS), (*parts, *_KEYS)]
    if len(call.operands) > len(placements):
        placements += _SEGMENTS
    operands = list(call.operands)
    types = [
        device_type(value.type, placement, axes)
        for value, placement in zip(operands, placements, strict=True)
    ]
    arrays = tuple(map(_array, types))
    name = _insert_function(module, arrays, config, axes[SEQUENCE], interpret=interpret)
    with ir.InsertionPoint(call), call.location:
        for array in mask_arrays(arrays, axes[SEQUENCE], **json.loads(config)):
            operands.append(stablehlo.ConstantOp(ir.DenseElementsAttr.get(array)).result)
            placements.append(((SEQUENCE,),) if array.ndim == 1 else ((), (SEQUENCE,), ()))
        if max(axes.values()) == 1:
            results = func.CallOp(kinds, name, operands).results
        else:
            results = compute_by_device(
                lambda parts, types: func.CallOp(types, name, parts).results,
                operands,
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


def _insert_function(
    module: Any, arrays: tuple[Array, ...], config: str, sequence: int, *, interpret: bool
) -> str:
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
    functions = ir.Module.parse(_lowered(arrays, config, sequence, interpret), module.context)

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
def _lowered(arrays: tuple[Array, ...], config: str, sequence: int, interpret: bool) -> bytes:
    """Returns JAX's function of a pass as MLIR's bytecode."""
    import jax
    from jax._src.interpreters import mlir

    options = json.loads(config)
    with jax.enable_x64(False):
        function = splash_function(arrays, sequence, **options, interpret=interpret)
        specs = [jax.ShapeDtypeStruct(shape, np.dtype(kind)) for shape, kind in arrays]
        for array in mask_arrays(arrays, sequence, **options):
            axis = 0 if array.ndim == 1 else 1
            shape = [size // sequence if number == axis else size for number, size in enumerate(array.shape)]
            specs.append(jax.ShapeDtypeStruct(shape, array.dtype))
        platform = "cpu" if interpret else "tpu"
        lowered = jax.jit(function, keep_unused=True).trace(*specs).lower(lowering_platforms=(platform,))
    module = lowered.compiler_ir("stablehlo")
    if not interpret:
        _estimate_costs(module, arrays, sequence, options)
    return mlir.module_to_bytecode(module)


def _estimate_costs(module: Any, arrays: Sequence[Array], sequence: int, options: Mapping[str, Any]) -> None:
    """Tells the compiler what the kernels cost, for its schedule and reports; see splash_function."""
    from jaxlib.mlir import ir

    (rows, _, heads, size), _ = arrays[0]
    kernel = _kernel(arrays, sequence, **options)
    blocks = int(np.count_nonzero(kernel.fwd_mask_info.block_mask))
    if mask_arrays(arrays, sequence, **options):  # of all devices
        blocks //= sequence
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


def mask_arrays(arrays: Sequence[Array], sequence: int, **options: Any) -> list[np.ndarray]:
    """Returns the arrays that tell a pass which keys the queries of all devices see, if that differs between devices.

    The devices of a row divide the last axis of one-dimensional arrays, and the second axis of others. The arguments
    are those of splash_function.

    Returns:
        An empty list if all devices have the same: the function then contains them.
    """
    if sequence == 1 or _sees_all(arrays, **options):
        return []
    infos = _infos(_kernel(arrays, sequence, **options), is_forward=len(arrays) < 6)
    return [np.asarray(array) for info in infos for array in _arrays_of(info).values()]


def _sees_all(arrays: Sequence[Array], *, causal: bool, window: int | None, **_: Any) -> bool:
    """Returns whether each query sees all keys of its segment."""
    length = arrays[1][0][1]
    return not causal and (window is None or window >= length)


def _arrays_of(info: Any) -> dict[str, Any]:
    return {
        name: array for name, array in info._asdict().items() if name in _MASK_ARRAYS and array is not None
    }


def _infos(kernel: Any, *, is_forward: bool) -> list[Any]:
    """Returns JAX's description of the masks of a pass."""
    infos = [kernel.fwd_mask_info] if is_forward else [kernel.dq_mask_info, kernel.dkv_mask_info]
    # All of these masks are functions of numbers of queries and keys.
    assert all(info.partial_mask_blocks is None for info in infos)
    return infos


def splash_function(
    arrays: Sequence[Array], sequence: int = 1, *, interpret: bool = False, **options: Any
) -> Callable[..., Any]:
    """Returns the JAX function of a call, forward or backward, for a device.

    Args:
        arrays: Of a device's parts of the operands; see network/splash_attention.py.
        sequence: Devices that divide a row. The function then has further operands: a device's parts of `mask_arrays`.
        interpret: See insert_splash_kernels.
        options: `causal` and `soft_cap` as in attend_in_splash; `window` of the layer; and `parts`, the number of
            chunks that the order of queries moves, 1 if they are in order.
    """
    import jax
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash

    whole = _kernel(arrays, sequence, **options, interpret=interpret)
    is_forward = len(arrays) < 6

    def by_heads(array: Any) -> Any:
        return array.swapaxes(1, 2)

    def segments(operands: Sequence[Any]) -> Any:
        return splash.SegmentIds(*operands) if operands else None

    def infos(masks: Sequence[Any]) -> list[Any]:
        """Returns the masks of the device."""
        values = iter(masks)
        return [
            info if not masks else info._replace(**{name: next(values) for name in _arrays_of(info)})
            for info in _infos(whole, is_forward=is_forward)
        ]

    def forward(operands: Sequence[Any], masks: Sequence[Any]) -> Any:
        kernel = splash.SplashAttentionKernel(*infos(masks), None, None, **whole.kwargs)

        def row(query: Any, key: Any, value: Any, *others: Any) -> Any:
            return kernel(query, key, value, segments(others))

        query, key, value, *others = operands
        output, (statistics,) = jax.vmap(row)(by_heads(query), by_heads(key), by_heads(value), *others)
        return by_heads(output), statistics

    def backward(operands: Sequence[Any], masks: Sequence[Any]) -> Any:
        kwargs = whole.kwargs

        def row(
            query: Any, key: Any, value: Any, output: Any, statistics: Any, d_output: Any, *others: Any
        ) -> Any:
            values = (query, key, value, segments(others), None, output, statistics)
            gradients = splash._splash_attention_bwd(
                False,
                kwargs["mask_value"],
                kwargs["is_mqa"],
                kwargs["block_sizes"],
                None,
                kwargs["mask_function"],
                kwargs["attn_logits_soft_cap"],
                interpret,
                (*values, *infos(masks)),
                d_output,
            )
            return gradients[3:6]

        query, key, value, output, statistics, d_output, *others = operands
        rows = (*map(by_heads, (query, key, value, output)), statistics, by_heads(d_output))
        d_query, d_key, d_value = map(by_heads, jax.vmap(row)(*rows, *others))
        if sequence > 1:
            d_key, d_value = d_key[None], d_value[None]
        return d_query, d_key, d_value

    def function(*operands: Any) -> Any:
        count = len(arrays)
        return (forward if is_forward else backward)(operands[:count], operands[count:])

    return function


def _kernel(
    arrays: Sequence[Array],
    sequence: int,
    *,
    causal: bool,
    window: int | None,
    soft_cap: float | None,
    parts: int = 1,
    interpret: bool = False,
) -> Any:
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    (_, queries, heads, _), _ = arrays[0]
    length = arrays[1][0][1]
    square = (length, length)
    if _sees_all(arrays, causal=causal, window=window):
        mask = masks.FullMask((queries, length))
    elif window is not None and window < length:
        mask = masks.LocalMask(square, (window - 1, 0 if causal else window - 1), 0)
    else:
        mask = masks.CausalMask(square)
    if parts > 1:
        mask.q_sequence = balanced_order(length, parts // 2)
    # Larger blocks than the window would compute mostly scores that no query sees.
    largest = _BLOCKS[0] if window is None else max(window, _LEAST_BLOCK)
    chunk = length // max(parts, sequence)
    block = next(block for block in _BLOCKS if chunk % block == 0 and (block <= largest))
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
        q_seq_shards=length // queries if mask.shape == square else 1,
        interpret=interpret,
    )
