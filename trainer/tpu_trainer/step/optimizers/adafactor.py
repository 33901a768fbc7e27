"""Adafactor (Shazeer and Stern, 2018), as in PyTorch: the mean squares of a matrix take the memory of two vectors."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tpu_trainer.step.optimizers.optimizer import Progress, Slots

_DECAY_EXPONENT = -0.8
_LEAST_RMS = 1e-3
_MAX_CHANGE = 1.0
# PyTorch's default, 1.2e-7, is as large as the mean squares of many models' gradients; the paper has 1e-30.
_LEAST_SQUARE = 1e-30


class Adafactor:
    """The update of `torch.optim.Adafactor` with eps=(1e-15, 1e-3), but without its 1 / √step as upper bound of the
    learning rate, which the schedule determines.

    The learning rate is relative: an update changes a matrix or vector by about this share of its root mean square.
    """

    rate_factor = 1.0

    def slot_shapes(self, shape: Sequence[int], axes: Sequence[int]) -> dict[str, tuple[int, ...]]:
        """See UpdateRule."""
        if len(axes) < 2:
            return {"mean_square": tuple(shape)}
        return {"row_mean_square": (*shape[:-1], 1), "column_mean_square": (*shape[:-2], 1, shape[-1])}

    def change(
        self, weight: tf.Tensor, gradient: tf.Tensor, slots: Slots, *, progress: Progress, axes: Sequence[int]
    ) -> tf.Tensor:
        """See UpdateRule."""
        decay = 1 - progress.update**_DECAY_EXPONENT
        square = tf.square(gradient)

        def running_mean(name: str, value: tf.Tensor) -> tf.Tensor:
            slots[name].assign(decay * slots[name] + (1 - decay) * value)
            return tf.convert_to_tensor(slots[name])

        if len(axes) < 2:
            mean_square = running_mean("mean_square", square)
        else:
            rows = running_mean("row_mean_square", tf.reduce_mean(square, axis=-1, keepdims=True))
            columns = running_mean("column_mean_square", tf.reduce_mean(square, axis=-2, keepdims=True))
            whole = tf.reduce_mean(rows, axis=-2, keepdims=True)
            # Divided first: the product of two small means could be 0 in float32.
            mean_square = rows / tf.maximum(whole, _LEAST_SQUARE**0.5) * columns
        change = gradient * tf.math.rsqrt(tf.maximum(mean_square, _LEAST_SQUARE))
        scale = tf.maximum(_rms(weight, axes), _LEAST_RMS) / tf.maximum(_rms(change, axes) / _MAX_CHANGE, 1.0)
        return progress.rate * scale * change


def _rms(values: tf.Tensor, axes: Sequence[int]) -> tf.Tensor:
    """Returns the root mean square over `axes`, which it keeps."""
    return tf.sqrt(tf.reduce_mean(tf.square(values), axis=axes, keepdims=True))
