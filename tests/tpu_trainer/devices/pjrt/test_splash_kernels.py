"""JAX's splash attention, interpreted on a CPU. tests/tpu_check compiles it for TPUs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tpu_trainer.devices.pjrt.splash_kernels import splash_function
from tpu_trainer.network.attention import ProbabilitiesDropout, Visibility, attend
from tpu_trainer.network.stack import Kept

ROWS, LENGTH, HEADS = 2, 384, 4  # three blocks


def kernel_results(
    options: dict[str, Any], arrays: list[np.ndarray], segments: np.ndarray | None
) -> list[Any]:
    """Returns the output and the three gradients of the kernels."""
    import jax

    *inputs, d_output = arrays
    further = [] if segments is None else [segments]

    def run(*operands: Any) -> Any:
        shapes = [(operand.shape, operand.dtype.name) for operand in operands]
        return jax.jit(splash_function(shapes, **options, interpret=True))(*operands)

    with jax.enable_x64(False):
        output, statistics = run(*inputs, *further)
        return [output, *run(*inputs, output, statistics, d_output, *further)]


@pytest.mark.parametrize(
    ("head_size", "key_heads", "options", "documents"),
    [
        (64, 2, {"causal": True, "window": 150, "soft_cap": 2.0}, True),
        (256, 1, {"causal": False, "window": 100, "soft_cap": None}, True),
        pytest.param(
            128, 4, {"causal": True, "window": None, "soft_cap": None}, False, marks=pytest.mark.wide
        ),
        pytest.param(
            64, 1, {"causal": False, "window": None, "soft_cap": None}, True, marks=pytest.mark.wide
        ),
    ],
)
def test_output_and_gradients_equal_plain_attentions(
    head_size: int, key_heads: int, options: dict[str, Any], documents: bool
) -> None:
    pytest.importorskip("jax")
    random = np.random.default_rng(0)
    heads = (HEADS, key_heads, key_heads, HEADS)
    arrays = [random.standard_normal((ROWS, LENGTH, count, head_size)).astype(np.float32) for count in heads]
    arrays[0] *= 2 / head_size**0.5
    segments = np.sort(random.integers(0, 3, (ROWS, LENGTH))).astype(np.int32) if documents else None
    *inputs, d_output = map(tf.constant, arrays)
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        output = attend(
            *inputs,
            visibility=Visibility(options["causal"], options["window"], segments),
            scale=1.0,
            soft_cap=options["soft_cap"],
            kept=Kept(()),
            dropout=ProbabilitiesDropout(0.0, None, 0),
        )
    expected = [output, *tape.gradient(output, inputs, output_gradients=d_output)]
    for result, value in zip(kernel_results(options, arrays, segments), expected, strict=True):
        np.testing.assert_allclose(result, value, rtol=1e-4, atol=1e-5 * np.abs(value).max())
