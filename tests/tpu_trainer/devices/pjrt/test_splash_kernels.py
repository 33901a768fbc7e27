"""JAX's splash attention, interpreted on a CPU. tests/tpu_check compiles it for TPUs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tpu_trainer.devices.pjrt.splash_kernels import mask_arrays, splash_function
from tpu_trainer.network.attention import ProbabilitiesDropout, Visibility, attend
from tpu_trainer.network.division import balanced_order
from tpu_trainer.network.stack import Kept

ROWS, LENGTH, HEADS = 2, 1536, 4  # at least three blocks


def kernel_results(
    options: dict[str, Any], arrays: list[np.ndarray], segments: np.ndarray | None, devices: int = 1
) -> list[Any]:
    """Returns the output and the three gradients of the kernels, of `devices` that divide the rows."""
    import jax

    query, key, value, d_output = arrays
    order = balanced_order(LENGTH, devices) if options.get("parts", 1) > 1 else np.arange(LENGTH)
    results = []
    with jax.enable_x64(False):
        for device, own in enumerate(np.split(order, devices)):
            further = [] if segments is None else [segments[:, own], segments]

            def run(*operands: Any, device: int = device) -> Any:
                shapes = [(operand.shape, operand.dtype.name) for operand in operands]
                masks = [
                    np.split(array, devices, axis=0 if array.ndim == 1 else 1)[device]
                    for array in mask_arrays(shapes, devices, **options)
                ]
                return jax.jit(splash_function(shapes, devices, **options, interpret=True))(*operands, *masks)

            output, statistics = run(query[:, own], key, value, *further)
            gradients = run(query[:, own], key, value, output, statistics, d_output[:, own], *further)
            results.append([output, *gradients])
    if devices == 1:
        return results[0]
    outputs, d_queries, d_keys, d_values = zip(*results, strict=True)
    back = np.argsort(order)
    return [
        *(np.concatenate(parts, axis=1)[:, back] for parts in (outputs, d_queries)),
        *(sum(parts)[0] for parts in (d_keys, d_values)),
    ]


@pytest.mark.parametrize(
    ("head_size", "key_heads", "options", "documents", "devices"),
    [
        (64, 2, {"causal": True, "window": 150, "soft_cap": 2.0}, True, 1),
        (256, 1, {"causal": False, "window": 100, "soft_cap": None}, True, 1),
        (64, 2, {"causal": True, "window": None, "soft_cap": None, "parts": 6}, True, 3),
        pytest.param(
            *(64, 2, {"causal": True, "window": 300, "soft_cap": None, "parts": 4}, True, 2),
            marks=pytest.mark.wide,
        ),
        pytest.param(
            *(128, 1, {"causal": True, "window": None, "soft_cap": None}, False, 3), marks=pytest.mark.wide
        ),
        pytest.param(
            *(64, 1, {"causal": False, "window": None, "soft_cap": None}, True, 2), marks=pytest.mark.wide
        ),
        pytest.param(
            *(64, 1, {"causal": False, "window": 200, "soft_cap": None}, True, 2), marks=pytest.mark.wide
        ),
        pytest.param(
            *(128, 4, {"causal": True, "window": None, "soft_cap": None}, False, 1), marks=pytest.mark.wide
        ),
        pytest.param(
            *(64, 1, {"causal": False, "window": None, "soft_cap": None}, True, 1), marks=pytest.mark.wide
        ),
    ],
)
def test_output_and_gradients_equal_plain_attentions(
    head_size: int, key_heads: int, options: dict[str, Any], documents: bool, devices: int
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
    for result, value in zip(kernel_results(options, arrays, segments, devices), expected, strict=True):
        np.testing.assert_allclose(result, value, rtol=1e-4, atol=1e-5 * np.abs(value).max())
