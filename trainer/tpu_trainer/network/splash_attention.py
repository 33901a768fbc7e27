"""Attention on a TPU by JAX's splash attention kernels, which never store scores in memory.

The kernels take grouped heads, documents, windows, soft caps and long rows. They skip blocks of keys that no query of a
block sees. The graph has calls of `CALL` in their place, which devices/pjrt/splash_kernels.py replaces by kernels for
the rows and heads of one device.

The forward pass returns the logarithm of each query's sum of exponentials, from which the backward pass recomputes
probabilities block by block.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tpu_trainer.network.architecture import Architecture
from tpu_trainer.network.custom_call import custom_call
from tpu_trainer.network.division import ONE_DEVICE, Division, in_columns, in_order
from tpu_trainer.network.stack import Kept

CALL = "tokenmill.splash_attention"
"""How the names of the calls begin; `.forward` or `.backward` follows. The operands are query [B, L, H, D], key and
value [B, L, K, D], then for the backward pass output, statistics float32[B, H, L] and the output's gradient, and at the
end the segments of queries and of keys, int32[B, L], if there are any. Where devices divide rows, each has all keys, in
the order of their places; the gradients of keys and values, [S, B, L, K, D], are those of each device's queries."""
LANES = 128
"""Lanes of a TPU's vector registers: the smallest block of queries and keys."""
_HEAD_SIZE_STEP = 64
_MAX_HEAD_SIZE = 256
_MAX_LENGTH = 2**17


def unsupported_reason(
    architecture: Architecture, *, length: int, division: Division = ONE_DEVICE
) -> str | None:
    """Returns why the kernels cannot compute the attention of a network; None if they can.

    Args:
        architecture: The network's.
        length: Tokens in a row.
        division: How devices divide the attention.
    """
    attention = architecture.attention
    if attention.head_size > _MAX_HEAD_SIZE or attention.head_size % _HEAD_SIZE_STEP:
        return (
            f"the model's heads have {attention.head_size} dimensions, but the kernel needs a multiple of "
            f"{_HEAD_SIZE_STEP} up to {_MAX_HEAD_SIZE}"
        )
    if architecture.dropout.probabilities > 0:
        return "the model drops probabilities out, but the kernel does not"
    step = LANES * division.chunks(architecture)
    if length % step or length > _MAX_LENGTH:
        return f"rows have {length} tokens, but the kernel needs a multiple of {step} up to {_MAX_LENGTH}"
    if attention.key_heads % division.model:
        return f"the model has {attention.key_heads} key heads, which {division.model} devices cannot divide"
    return None


def attend_in_splash(
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    *,
    causal: bool,
    windows: Sequence[int | None],
    number: tf.Tensor | int,
    scale: tf.Tensor | float,
    soft_cap: float | None,
    segments: tf.Tensor | None,
    kept: Kept,
    division: Division = ONE_DEVICE,
    order: np.ndarray | None = None,
) -> tf.Tensor:
    """Returns what attention.attend returns, [B, L, H, D], in the inputs' dtype. For a TPU only.

    Args:
        query: [B, L, H, D].
        key: [B, L, K, D]; each key head is for H / K neighbouring query heads. If devices divide rows, each has all.
        value: [B, L, K, D], like key.
        causal: Whether queries attend only to keys up to their own position.
        windows: Of all layers; see attention.Visibility.
        number: Of the layer's among them.
        scale: Factor of the scores.
        soft_cap: See architecture.Attention.
        segments: See attention.Visibility.
        kept: Keeps the kernel's statistics. If it has these and the context, the kernel does not run again.
        division: How devices divide the attention.
        order: See Division.order; of queries, keys, values and segments.
    """
    context, statistics = kept.stored("context"), kept.stored("statistics")

    parts = 1 if order is None else 2 * division.sequence

    def run(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, *others: tf.Tensor) -> list[tf.Tensor]:
        operands = [query, in_order(key, order, parts), in_order(value, order, parts), *others]
        if segments is not None:
            operands += [segments, in_order(segments, order, parts)]
        config = {"causal": causal, "soft_cap": soft_cap, "parts": parts}
        branches = [
            lambda window=window: _run(operands, config | {"window": window}, division.sequence)
            for window in windows
        ]
        return branches[0]() if len(branches) == 1 else tf.switch_case(number, branches)

    @tf.custom_gradient
    def core(
        query: tf.Tensor, key: tf.Tensor, value: tf.Tensor
    ) -> tuple[tuple[tf.Tensor, tf.Tensor], Callable[..., Any]]:
        if context is None or statistics is None:
            output, sums = run(query, key, value)
        else:
            output, sums = tf.reshape(context, query.shape), tf.identity(statistics)

        def gradient(d_output: tf.Tensor, _: tf.Tensor) -> list[tf.Tensor]:
            d_query, *others = run(query, key, value, output, sums, d_output)
            if division.sequence > 1:
                # In the columns' order before their sum, of which devices then need only their own columns.
                others = [
                    tf.reduce_sum(in_columns(parts_of_sum, order, parts, axis=2), axis=0)
                    for parts_of_sum in others
                ]
            return [d_query, *others]

        return (output, sums), gradient

    output, sums = core(query * tf.cast(scale, query.dtype), key, value)
    kept("statistics", sums)
    return output


def _run(operands: Sequence[tf.Tensor], config: Mapping[str, Any], sequence: int) -> list[tf.Tensor]:
    """Returns output and statistics; if there are operands of the backward pass, the gradients of query, key and value.

    Args:
        operands: Those of `CALL`.
        config: The arguments of splash_kernels.splash_function.
        sequence: Devices that divide a row.
    """
    query, key, value = operands[:3]
    rows, length, heads, _ = query.shape
    is_forward = len(operands) < 6
    results = [(query.dtype, query.shape), (tf.float32, [rows, heads, length])]
    if not is_forward:
        parts = [] if sequence == 1 else [sequence]
        results = [(query.dtype, query.shape), *((x.dtype, [*parts, *x.shape]) for x in (key, value))]
    return custom_call(f"{CALL}.{'forward' if is_forward else 'backward'}", operands, config, results)
