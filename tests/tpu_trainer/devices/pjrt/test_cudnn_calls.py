"""Compares the calls of cuDNN in a lowered program with those that JAX makes for the same attention."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import tensorflow as tf
from jax._src.cudnn import fused_attention_stablehlo
from jax._src.interpreters import mlir
from jaxlib.mlir.dialects import stablehlo

from tpu_trainer.devices.pjrt.stablehlo import Program
from tpu_trainer.network.cudnn_attention import Mask, attend_in_cudnn
from tpu_trainer.network.stack import Kept

ROWS, LENGTH, HEADS, KEY_HEADS, SIZE = 2, 64, 4, 2, 128
SHAPES = {
    "query": (ROWS, LENGTH, HEADS, SIZE),
    "key": (ROWS, LENGTH, KEY_HEADS, SIZE),
    "value": (ROWS, LENGTH, KEY_HEADS, SIZE),
    "d_output": (ROWS, LENGTH, HEADS, SIZE),
    "bias": (ROWS, 1, LENGTH, LENGTH),
}


def calls(text: str) -> list[str]:
    """Returns the calls in a program, without the names of values."""
    lines = [line.split(" loc(")[0].strip() for line in text.splitlines() if "__cudnn" in line]
    return [re.sub(r"%[\w#]+(:\d+)?", "%", line) for line in lines]


@pytest.mark.parametrize(
    ("causal", "window", "has_bias"),
    [(True, None, False), (True, 16, False), (True, None, True), (False, None, True)],
)
def test_calls_are_those_of_jax(
    causal: bool, window: int | None, has_bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ours(batch: dict[str, tf.Tensor]) -> Sequence[tf.Tensor]:
        query, key, value, d_output, bias = batch.values()
        mask = Mask(causal, window, bias if has_bias else None)
        with tf.GradientTape() as tape:
            tape.watch([query, key, value])
            output = attend_in_cudnn(query, key, value, masks=(mask,), number=0, scale=0.25, kept=Kept(()))
        return output, *tape.gradient(output, [query, key, value], output_gradients=d_output)

    # JAX asks the GPU that it lowers for.
    monkeypatch.setattr(fused_attention_stablehlo, "check_cudnn_version", lambda: 91000)
    monkeypatch.setattr(fused_attention_stablehlo, "check_compute_capability", lambda capability: True)

    def theirs(query: Any, key: Any, value: Any, d_output: Any, bias: Any) -> Any:
        def attention(*inputs: Any) -> Any:
            return jax.nn.dot_product_attention(
                *inputs,
                bias=bias if has_bias else None,
                is_causal=causal,
                scale=0.25,
                local_window_size=None if window is None else (window - 1, 0),
                implementation="cudnn",
            )

        output, gradient = jax.vjp(attention, query, key, value)
        return output, *gradient(d_output)

    structs = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in SHAPES.values()]
    expected = jax.jit(theirs).trace(*structs).lower(lowering_platforms=("cuda",)).as_text()
    specs = {name: tf.TensorSpec(shape, tf.bfloat16) for name, shape in SHAPES.items()}
    artifact = Program(ours, specs).lower().artifact
    with mlir.make_ir_context() as context:
        lowered = str(stablehlo.deserialize_portable_artifact(context, artifact))
    assert len(calls(lowered)) == 2
    assert calls(lowered) == calls(expected)
