"""Checks before a run that the attention kernel is correct on this device."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
import tf_keras as keras

from tpu_trainer.config import Precision
from tpu_trainer.errors import UsageError
from tpu_trainer.network.attention import attend
from tpu_trainer.network.attention_kernel import HEAD_SIZE, UNSEEN, attend_in_kernel, kernel_dtype
from tpu_trainer.network.call_context import CallContext, CallValues
from tpu_trainer.network.patches.dropout import key_dropout

# Rounding to bfloat16 accounts for up to 0.8% of the root mean square; wrong masks or dropout bits for 25% and more.
_TOLERANCE = 0.03
_ROWS, _HEADS, _DROPOUT = 2, 4, 0.1
_REMEDY = "use --train.recompute_attention instead"


def check_attention_kernel(
    strategy: tf.distribute.Strategy, *, length: int, causal: bool, precision: Precision, tpu: str
) -> float:
    """Compares the kernel with plain attention, forward and backward, on random rows with padding and documents.

    Args:
        strategy: Both run on its first replica's device.
        length: Tokens in a row.
        causal: Whether attention is causal.
        precision: The training precision.
        tpu: The device's generation.

    Returns:
        The largest relative difference of the output and the three gradients: the root mean square of the difference
        divided by that of plain attention's result.

    Raises:
        UsageError: If a difference is too large, or the device rejects the kernel.
    """
    in_kernel = kernel_dtype(precision, tpu)
    dtype = tf.bfloat16 if precision == "mixed_bfloat16" else tf.float32
    random = np.random.default_rng(0)
    arrays = random.standard_normal((4, _ROWS, length, _HEADS * HEAD_SIZE)).astype(np.float32)
    key_bias = np.zeros((_ROWS, length), np.float32)
    key_bias[1, -length // 16 :] = -1e4  # the models' mask of padding
    segments = np.tile(np.arange(length) >= length - length // 4, [_ROWS, 1]).astype(np.int32)
    network = keras.Sequential([keras.layers.Dropout(_DROPOUT)])
    network.build([None, length])
    context = CallContext()
    key_dropout(network, context)
    (dropout,) = network.layers

    def plain(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
        seen = segments[:, None, :, None] == segments[:, None, None, :]
        if causal:
            seen &= np.tril(np.ones((length, length), bool))
        bias = np.where(seen, key_bias[:, None, None, :], np.float32(UNSEEN))
        heads = (
            tf.transpose(tf.reshape(x, [_ROWS, length, _HEADS, HEAD_SIZE]), [0, 2, 1, 3])
            for x in (query, key, value)
        )
        output = attend(*heads, bias=tf.constant(bias), dropout=dropout)
        return tf.reshape(tf.transpose(output, [0, 2, 1, 3]), query.shape)

    def kernel(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
        return attend_in_kernel(
            query,
            key,
            value,
            causal=causal,
            key_bias=tf.constant(key_bias),
            segment_ids=tf.constant(segments),
            dropout=dropout,
            dtype=in_kernel,
        )

    def both() -> list[list[tf.Tensor]]:
        *inputs, d_output = (tf.constant(array, dtype) for array in arrays)
        results = []
        values = CallValues(
            dropout_key=(tf.constant(1, tf.uint32), tf.constant(2, tf.uint32)), row=tf.range(_ROWS)
        )
        for attention in (plain, kernel):
            with context.using(values), tf.GradientTape() as tape:
                tape.watch(inputs)
                output = attention(*inputs)
            gradients = tape.gradient(output, inputs, output_gradients=d_output)
            results.append([tf.cast(result, tf.float32) for result in (output, *gradients)])
        return results

    @tf.function(autograph=False)
    def on_device() -> list[list[tf.Tensor]]:
        return strategy.run(both)

    try:
        expected, found = (
            [strategy.experimental_local_results(value)[0].numpy() for value in values]
            for values in on_device()
        )
    except tf.errors.OpError as error:
        raise UsageError(
            f"--train.attention_kernel: this device rejects the {in_kernel.name} kernel for rows of {length} tokens; "
            f"{_REMEDY}\n{error.message}"
        ) from error
    differences = [
        float(np.sqrt(np.mean(np.square(b - a)) / np.mean(np.square(a))))
        for a, b in zip(expected, found, strict=True)
    ]
    for name, difference in zip(
        ("output", "gradient of queries", "gradient of keys", "gradient of values"), differences, strict=True
    ):
        # `not <=` instead of `>` rejects NaN.
        if not difference <= _TOLERANCE:
            raise UsageError(
                f"--train.attention_kernel: on this device, the kernel's {name} differs from plain attention's by "
                f"{difference:.1%} of its root mean square, for rows of {length} tokens in {dtype.name}; {_REMEDY}"
            )
    return max(differences)
