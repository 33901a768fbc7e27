"""Cross-entropy over a large vocabulary without an array of all logits.

The logits are by far the largest array of a batch (16 rows of 1024 tokens, 50,304 ids: 3.3 GB in float32), and their
gradient is of the same size. Both are computed here for a chunk of positions at a time. In training, the forward pass
also computes the gradient with respect to the inputs while a chunk's logits exist, so nothing is recomputed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops

# Logits per chunk, 128 MB to 512 MB in bfloat16. Each chunk reads and writes the accumulated gradient of the matrix:
# with fewer logits than the matrix has elements, these would be most of the bytes.
_LEAST_LOGITS, _MOST_LOGITS = 2**26, 2**28
_MASKED_LOGIT = -1e9


class OutputWeights(NamedTuple):
    """The last layer: logits = hidden · matrixᵀ + bias, which the soft cap then limits."""

    matrix: tf.Tensor
    """float32[V, H]."""
    bias: tf.Tensor
    """float32[V]."""
    soft_cap: float | None = None
    """See architecture.Head."""


def mask_padded_ids(bias: tf.Tensor, size: int) -> tf.Tensor:
    """Returns `bias` (float32[V]) with values that give the ids from `size` probability 0."""
    return tf.concat(
        [bias[:size], tf.fill([bias.shape[0] - size], tf.constant(_MASKED_LOGIT, bias.dtype))], axis=0
    )


def cross_entropy_sums(
    *,
    hidden: tf.Tensor,
    output: OutputWeights,
    targets: tf.Tensor,
    weights: tf.Tensor,
    size: int,
    training: bool,
    z_loss: float = 0.0,
    max_logits: int | None = None,
    shards: int = 1,
    sources: Sources | None = None,
) -> tuple[tf.Tensor, ...]:
    """Returns the weighted sums of the cross-entropy, in nats, and of correct predictions: float32 scalars.

    With `sources`, also returns both sums of each source: float32[count, 2].

    Factors of products have `hidden`'s dtype; sums and the softmax are float32. In training, logits are rounded to
    `hidden`'s dtype first, as in Megatron-LM: in bfloat16, this halves the loss's memory traffic. Rounding causes ties:
    if a target is one of n ids with the highest logit, it counts as 1 / n correct predictions.

    Args:
        hidden: float32 or bfloat16 [N, H]; N is static.
        output: The last layer. The logits are rounded before their soft cap.
        targets: int32[N].
        weights: float32[N].
        size: The vocabulary's size without padding, at most V; ids from `size` are never predicted.
        training: Whether to compute the gradient.
        z_loss: The gradient is that of the cross-entropy plus this times log² Z, Z the sum of the exponentials of the
            logits, as in PaLM (Chowdhery et al., 2022, section 5). The returned sums are without it.
        max_logits: Maximum number of logits per chunk and shard; None: as many as the matrix has elements, in
            bounds.
        shards: Groups of devices that divide the positions in one program. Each chunk has positions of all of them.
        sources: The source of each position, int32[N].
    """
    count, padded_size = hidden.shape[0] // shards, output.matrix.shape[0]
    if max_logits is None:
        max_logits = min(max(_LEAST_LOGITS, output.matrix.shape.num_elements()), _MOST_LOGITS)
    positions = _Positions(
        targets=tf.reshape(targets, [shards, count]),
        weights=tf.reshape(weights, [shards, count]),
        sources=sources and Sources(tf.reshape(sources.numbers, [shards, count]), sources.count),
        chunk=_chunk_size(count, max(1, math.ceil(count * padded_size / max_logits))),
    )

    loss = _Loss(size=size, soft_cap=output.soft_cap, z_loss=z_loss)

    def sums(hidden: tf.Tensor, matrix: tf.Tensor, bias: tf.Tensor) -> tuple[Any, Any]:
        masked_bias = mask_padded_ids(bias, size)
        return _sums_and_gradient(
            hidden, matrix, masked_bias, positions=positions, loss=loss, training=training
        )

    if training:
        return tf.custom_gradient(sums)(hidden, output.matrix, output.bias)
    return sums(hidden, output.matrix, output.bias)[0]


class Sources(NamedTuple):
    """The sources of rows or positions."""

    numbers: tf.Tensor
    """int32, from 0."""
    count: int
    """The number of sources."""


class _Positions(NamedTuple):
    """The positions of a batch, divided into shards."""

    targets: tf.Tensor
    """int32[shards, N / shards]."""
    weights: tf.Tensor
    """float32[shards, N / shards]."""
    sources: Sources | None
    """int32[shards, N / shards]."""
    chunk: int
    """Positions of each shard in a chunk."""


class _Loss(NamedTuple):
    """The loss of a position as a function of its logits; see `cross_entropy_sums` and `OutputWeights`."""

    size: int
    soft_cap: float | None
    z_loss: float


def _chunk_size(count: int, most: int) -> int:
    """Returns the size of chunks that divides the positions of a shard into at most `most`.

    Example: 48 positions, two shards and three chunks of 8 positions per shard:
        chunk 0 has the positions  0 …  7 and 24 … 31
        chunk 1 has the positions  8 … 15 and 32 … 39
        chunk 2 has the positions 16 … 23 and 40 … 47
    """
    # Rounded up to a TPU's 8 sublanes.
    return count if most == 1 else min(count, -(-math.ceil(count / most) // 8) * 8)


def _sums_and_gradient(
    hidden: tf.Tensor,
    matrix: tf.Tensor,
    masked_bias: tf.Tensor,
    *,
    positions: _Positions,
    loss: _Loss,
    training: bool,
) -> tuple[tuple[tf.Tensor, ...], Callable[..., tuple[tf.Tensor, tf.Tensor, tf.Tensor]]]:
    """Returns the sums of `cross_entropy_sums`, and their gradient with respect to hidden, matrix and bias."""
    logits_dtype = hidden.dtype if training else tf.float32
    shards, count = positions.targets.shape
    size, width = positions.chunk, hidden.shape[1]
    chunks = -(-count // size)
    narrow = tf.cast(matrix, hidden.dtype)
    sources = positions.sources
    # The last chunk is filled up with positions of weight 0.
    inputs = [
        tf.pad(values, [[0, 0], [0, chunks * size - count]] + [[0, 0]] * (len(values.shape) - 2))
        for values in (
            tf.reshape(hidden, [shards, count, width]),
            positions.targets,
            positions.weights,
            *([] if sources is None else [sources.numbers]),
        )
    ]

    def add_chunk(number: tf.Tensor, sums: tuple[tf.Tensor, ...], d_hidden: Any) -> tuple[Any, ...]:
        part, targets, weights, *numbers = (
            tf.slice(values, [0, number * size, *rest], [shards, size, *values.shape[2:]])
            for values in inputs
            for rest in [[0] * (len(values.shape) - 2)]
        )
        rounded = _round(
            _product(tf.reshape(part, [-1, width]), narrow, transpose_b=True) + masked_bias, logits_dtype
        )
        losses, correct, d_logits = _chunk_losses(rounded, targets, weights, loss)
        additions: tuple[tf.Tensor, ...] = (tf.reduce_sum(losses), tf.reduce_sum(correct))
        if sources is not None:
            both = tf.reshape(tf.concat([losses, correct], axis=1), [shards, size, 2])
            additions += (sums_of_sources(both, Sources(*numbers, sources.count)),)
        if training:
            d_bias = tf.reduce_sum(tf.reshape(d_logits, [shards, size, -1]), axis=1)
            d_logits = tf.cast(d_logits, hidden.dtype)
            d_rows = tf.cast(_product(d_logits, narrow), hidden.dtype)
            d_hidden = d_hidden.write(number, tf.reshape(d_rows, [shards, size, width]))
            d_matrix = _product(tf.reshape(d_logits, [shards, size, -1]), part, transpose_a=True)
            additions += (d_matrix, d_bias)
        return number + 1, tuple(a + b for a, b in zip(sums, additions, strict=True)), d_hidden

    sums: tuple[tf.Tensor, ...] = (tf.zeros([]), tf.zeros([]))
    d_hidden: Any = ()
    # Sums of each shard, which the devices add up once, after the last chunk.
    if sources is not None:
        sums += (tf.zeros([shards, sources.count, 2]),)
    if training:
        sums += (tf.zeros([shards, *matrix.shape]), tf.zeros([shards, *masked_bias.shape]))
        d_hidden = tf.TensorArray(hidden.dtype, size=chunks, element_shape=[shards, size, width])
    # A loop runs one chunk after the other: in parallel, they would need the memory of all logits.
    _, sums, d_hidden = tf.while_loop(
        lambda number, *_: number < chunks,
        add_chunk,
        (tf.constant(0), sums, d_hidden),
        maximum_iterations=chunks,
        parallel_iterations=1,
    )

    def gradient(d_loss: tf.Tensor, *_: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        d_rows = tf.reshape(tf.transpose(d_hidden.stack(), [1, 0, 2, 3]), [shards, chunks * size, width])
        return (
            tf.cast(d_loss, hidden.dtype) * tf.reshape(d_rows[:, :count], hidden.shape),
            d_loss * tf.reduce_sum(sums[-2], axis=0),
            d_loss * tf.reduce_sum(sums[-1], axis=0),
        )

    by_source = () if sources is None else (tf.reduce_sum(sums[2], axis=0),)
    return (sums[0], sums[1], *by_source), gradient


def sums_of_sources(values: tf.Tensor, sources: Sources) -> tf.Tensor:
    """Returns the sums of `values`, float32[…, n, k], of each source: float32[…, count, k]."""
    # Not a product, which a TPU would round.
    chosen = sources.numbers[..., None] == tf.range(sources.count)
    return tf.reduce_sum(tf.where(chosen[..., None], values[..., None, :], 0.0), axis=-3)


def _chunk_losses(
    rounded: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor, loss: _Loss
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the losses of a chunk, and the gradient of their sum, z-loss included, with respect to `rounded`.

    Args:
        rounded: The logits before their soft cap, float32 or bfloat16 [n, V].
        targets: int32 of n elements.
        weights: float32 of n elements.
        loss: The formula.

    Returns:
        The weighted cross-entropy and share of correct predictions of each position, float32[n, 1]; and float32[n, V].
    """
    highest = tf.cast(tf.reduce_max(rounded, axis=-1, keepdims=True), tf.float32)
    logits = tf.cast(rounded, tf.float32)
    ids = tf.range(logits.shape[-1])[None, :]
    at_target = ids == tf.reshape(targets, [-1, 1])
    target_logits = tf.reduce_sum(tf.where(at_target, logits, 0.0), axis=-1, keepdims=True)
    weight = tf.reshape(weights, [-1, 1])
    # A soft cap keeps the order of the logits.
    ties = tf.reduce_sum(tf.cast(logits == highest, tf.float32), axis=-1, keepdims=True)
    # `ties` is 0 only if logits are NaN.
    share = tf.cast(target_logits >= highest, tf.float32) / tf.maximum(ties, 1.0)

    capped, highest = _cap(logits, loss.soft_cap), _cap(highest, loss.soft_cap)
    exponentials = tf.exp(capped - highest)
    if loss.soft_cap is not None:
        # It also caps the logits that mask ids.
        exponentials = tf.where(ids < loss.size, exponentials, 0.0)
    total = tf.reduce_sum(exponentials, axis=-1, keepdims=True)
    log_z = tf.math.log(total) + highest
    probabilities = exponentials / total
    d_logits = probabilities - tf.cast(at_target, tf.float32)
    if loss.z_loss:
        d_logits += 2 * loss.z_loss * log_z * probabilities
    if loss.soft_cap is not None:
        d_logits *= 1 - tf.square(capped / loss.soft_cap)
    losses = log_z - _cap(target_logits, loss.soft_cap)
    return losses * weight, share * weight, d_logits * weight


def _cap(logits: tf.Tensor, soft_cap: float | None) -> tf.Tensor:
    return logits if soft_cap is None else soft_cap * tf.tanh(logits / soft_cap)


def _product(
    a: tf.Tensor, b: tf.Tensor, *, transpose_a: bool = False, transpose_b: bool = False
) -> tf.Tensor:
    """Returns a matrix product that is accumulated and returned in float32."""
    if a.dtype == tf.float32 or tf.executing_eagerly():
        # Without XLA, there is no such kernel for bfloat16.
        a, b = tf.cast(a, tf.float32), tf.cast(b, tf.float32)
    return tf.matmul(a, b, transpose_a=transpose_a, transpose_b=transpose_b, output_type=tf.float32)


def _round(logits: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Converts float32 logits to `dtype`, float32 or bfloat16, with the same rounding for all uses."""
    if dtype == tf.bfloat16 and not tf.executing_eagerly():
        # XLA may remove a conversion to bfloat16 and back for some uses of a value and not for others.
        logits = gen_xla_ops.xla_reduce_precision(logits, exponent_bits=8, mantissa_bits=7)
    return tf.cast(logits, dtype)
