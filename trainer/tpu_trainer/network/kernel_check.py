"""Checks before a run that the attention kernel is correct on this device."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tpu_trainer.network.architecture import Architecture
from tpu_trainer.network.attention import ProbabilitiesDropout, Visibility, attend
from tpu_trainer.network.attention_kernel import LANES, attend_in_kernel
from tpu_trainer.network.cudnn_attention import attend_in_cudnn, masks
from tpu_trainer.network.division import ONE_DEVICE, Division
from tpu_trainer.network.dropout import DropoutKey
from tpu_trainer.network.kernels import Kernel
from tpu_trainer.network.splash_attention import attend_in_splash
from tpu_trainer.network.stack import Kept
from tpu_trainer.support.errors import UsageError

# Rounding to bfloat16 accounts for up to 0.8% of the root mean square; wrong masks or dropout bits for 25% and more.
_TOLERANCE = 0.03
_ROWS, _HEADS, _DROPOUT = 2, 4, 0.1
# The scores of plain attention must fit in memory.
_MAX_LENGTH = 2048
_ARRAYS = ("query", "key", "value", "d_output")
_REMEDY = "use --train.recompute attention instead"


Function = Callable[[dict[str, tf.Tensor]], list[tf.Tensor]]
"""A function of named arrays."""
Run = Callable[[Function, dict[str, np.ndarray]], list[np.ndarray]]
"""Executes a function of named arrays on the devices and returns its results; raises Rejected."""


class Rejected(Exception):
    """The devices do not execute the function. The message is theirs."""


def check_attention_kernel(
    run: Run,
    *,
    architecture: Architecture,
    kernel: Kernel,
    dtype: tf.DType,
    length: int,
    division: Division = ONE_DEVICE,
) -> float:
    """Compares the kernel with plain attention, forward and backward, on random rows with padding and documents.

    Args:
        run: Executes both.
        architecture: The network's.
        kernel: The kernel.
        dtype: Of activations.
        length: Tokens in a row.
        division: How devices divide the attention.

    Returns:
        The largest relative difference of the output and the three gradients: the root mean square of the difference
        divided by that of plain attention's result.

    Raises:
        UsageError: If a difference is too large, or the device rejects the kernel.
    """
    if kernel.name != "mosaic":
        step = LANES * division.chunks(architecture)
        length = min(length, max(1, _MAX_LENGTH // step) * step)
    differences = []
    for number in range(len(architecture.windows)):
        attentions = _Attentions(
            architecture=architecture,
            number=number,
            kernel=kernel,
            dtype=dtype,
            division=division,
            order=division.order(architecture, length),
        )
        try:
            measured = list(map(float, run(attentions.differences, _device_arrays(architecture, length))))
        except Rejected as error:
            raise UsageError(
                f"--train.attention_kernel: this device rejects the {kernel.dtype.name} kernel for "
                f"rows of {length} tokens; {_REMEDY}\n{error}"
            ) from error
        _check(measured, length=length, dtype=dtype)
        differences += measured
    return max(differences)


def _check(measured: list[float], *, length: int, dtype: tf.DType) -> None:
    for name, difference in zip(
        ("output", "gradient of queries", "gradient of keys", "gradient of values"), measured, strict=True
    ):
        # `not <=` instead of `>` rejects NaN.
        if not difference <= _TOLERANCE:
            raise UsageError(
                f"--train.attention_kernel: on this device, the kernel's {name} differs from plain attention's by "
                f"{difference:.1%} of its root mean square, for rows of {length} tokens in {dtype.name}; "
                f"{_REMEDY}"
            )


def _device_arrays(architecture: Architecture, length: int) -> dict[str, np.ndarray]:
    """Returns the inputs of a device. Those of all devices are equal, but not their dropout."""
    random = np.random.default_rng(0)
    segments = np.tile(np.arange(length) >= length - length // 4, [_ROWS, 1]).astype(np.int32)
    segments[1, -length // 16 :] = -1  # padding
    attention = architecture.attention
    group = attention.heads // attention.key_heads
    heads = _HEADS if group == 1 else group
    return {
        name: random.standard_normal(
            (_ROWS, length, heads // group if name in ("key", "value") else heads, attention.head_size)
        ).astype(np.float32)
        for name in _ARRAYS
    } | {"segments": segments}


class _Attentions:
    """Plain attention and the kernel, with the same dropout. See `check_attention_kernel` for the arguments."""

    def __init__(
        self,
        *,
        architecture: Architecture,
        number: int,
        kernel: Kernel,
        dtype: tf.DType,
        division: Division,
        order: np.ndarray | None,
    ) -> None:
        """
        Args:
            number: Of the window.
            order: Of the columns; see Division.order.
        """
        self._architecture = architecture
        self._number = number
        self._kernel_type = kernel
        self._dtype = dtype
        self._division = division
        self._order = order

    def differences(self, arrays: dict[str, tf.Tensor]) -> list[tf.Tensor]:
        """Returns the relative differences of the output and the three gradients, float32 scalars."""
        groups = self._division.row_groups
        *inputs, d_output = (
            tf.cast(tf.tile(arrays[name], [groups, 1, self._division.model, 1]), self._dtype)
            for name in _ARRAYS
        )
        segments = tf.tile(arrays["segments"], [groups, 1])
        key = DropoutKey((tf.constant(1, tf.uint32), tf.constant(2, tf.uint32)), tf.range(_ROWS * groups))
        rate = _DROPOUT if self._kernel_type.name == "mosaic" else 0.0
        dropout = ProbabilitiesDropout(rate, key, 0)
        results = []
        for attention in (self._plain, self._kernel):
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                output = attention(inputs, segments, dropout)
            gradients = tape.gradient(output, inputs, output_gradients=d_output)
            results.append([tf.cast(result, tf.float32) for result in (output, *gradients)])
        return [
            tf.sqrt(tf.reduce_mean(tf.square(result - expected)) / tf.reduce_mean(tf.square(expected)))
            for expected, result in zip(*results, strict=True)
        ]

    @property
    def _scale(self) -> float:
        return self._architecture.attention.scale * self._architecture.kinds[0].scale

    def _plain(
        self, inputs: list[tf.Tensor], segments: tf.Tensor, dropout: ProbabilitiesDropout
    ) -> tf.Tensor:
        architecture = self._architecture
        return attend(
            *inputs,
            visibility=Visibility(
                architecture.causal, architecture.windows[self._number], segments, self._order
            ),
            scale=self._scale,
            soft_cap=architecture.attention.soft_cap,
            kept=Kept(()),
            dropout=dropout,
        )

    def _kernel(
        self, inputs: list[tf.Tensor], segments: tf.Tensor, dropout: ProbabilitiesDropout
    ) -> tf.Tensor:
        architecture = self._architecture
        if self._kernel_type.name == "mosaic":
            return attend_in_kernel(
                *inputs,
                causal=architecture.causal,
                segments=segments,
                dropout=dropout,
                dtype=self._kernel_type.dtype,
            )
        if self._kernel_type.name == "cudnn":
            window_masks = masks(architecture, segments=segments, length=segments.shape[1])
            return attend_in_cudnn(
                *inputs,
                masks=window_masks[self._number : self._number + 1],
                number=0,
                scale=self._scale,
                kept=Kept(()),
            )
        query, key, value = inputs
        return attend_in_splash(
            query,
            self._division.whole_rows(key),
            self._division.whole_rows(value),
            causal=architecture.causal,
            windows=architecture.windows[self._number : self._number + 1],
            number=0,
            scale=self._scale,
            soft_cap=architecture.attention.soft_cap,
            segments=segments,
            kept=Kept(()),
            division=self._division,
            order=self._order,
        )
