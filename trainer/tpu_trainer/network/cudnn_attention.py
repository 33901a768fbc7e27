"""Attention on a GPU by cuDNN's fused kernels ("flash attention"), which never store scores in memory.

The calls are those of JAX's jax.nn.dot_product_attention(implementation="cudnn"), which XLA's GPU compiler replaces by
cuDNN's graphs. Probabilities are float32 within the kernel. The forward pass returns the logarithm of each query's sum
of exponentials, from which the backward pass recomputes probabilities block by block. Documents are kept apart by a
bias that all layers share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tpu_trainer.network.architecture import Architecture
from tpu_trainer.network.attention import Visibility
from tpu_trainer.network.custom_call import custom_call
from tpu_trainer.network.division import ONE_DEVICE, Division
from tpu_trainer.network.stack import Kept

_MAX_HEAD_SIZE = 256
_HEAD_SIZE_STEP = 8
# JAX's: cuDNN subtracts smaller numbers from each other incorrectly.
_UNSEEN = -float(2 << 40)
CALLS = "__cudnn$fmha"
"""How the names of the calls begin."""
OUTPUT_LAYOUT = (3, 1, 2, 0)
"""How cuDNN stores outputs and gradients of [B, H, L, D]: as [B, L, H, D]. TensorFlow cannot declare it."""
_AXES = {  # (contracted axes, batch axes) of the left and the right factor, which are [B, L, H, D] or scores
    "bmm1": (("3", "3"), (("0", "2"), ("0", "2"))),
    "bmm2": (("3", "1"), (("0", "1"), ("0", "2"))),
    "bmm1_grad_gemm1": (("2", "1"), (("0", "1"), ("0", "2"))),
    "bmm1_grad_gemm2": (("3", "1"), (("0", "1"), ("0", "2"))),
    "bmm2_grad_gemm1": (("2", "1"), (("0", "1"), ("0", "2"))),
    "bmm2_grad_gemm2": (("3", "3"), (("0", "2"), ("0", "2"))),
}


class Mask(NamedTuple):
    """Which keys a query sees, as cuDNN computes it."""

    causal: bool
    window: int | None
    """Only the last `window` keys, the query's own position included; None: all."""
    bias: tf.Tensor | None
    """bfloat16[B or 1, 1, L, L], added to the scores; None: nothing is."""


def unsupported_reason(
    architecture: Architecture, *, dtype: tf.DType, division: Division = ONE_DEVICE
) -> str | None:
    """Returns why cuDNN cannot compute the attention of a network; None if it can.

    Args:
        architecture: The network's.
        dtype: Of activations.
        division: How devices divide the attention.
    """
    attention, devices = architecture.attention, division.model
    if division.sequence > 1:
        return "--mesh.sequence divides rows, but cuDNN's kernel needs whole ones"
    if dtype != tf.bfloat16:
        return "cuDNN's kernel computes in bfloat16, but --train.precision is float32"
    if attention.head_size > _MAX_HEAD_SIZE or attention.head_size % _HEAD_SIZE_STEP:
        return (
            f"the model's heads have {attention.head_size} dimensions, but cuDNN's kernel needs a multiple of "
            f"{_HEAD_SIZE_STEP} up to {_MAX_HEAD_SIZE}"
        )
    if attention.soft_cap is not None:
        return "the model caps scores, but cuDNN's kernel does not"
    if architecture.dropout.probabilities > 0:
        return "the model drops probabilities out, for which cuDNN's kernel has other random numbers"
    if len({kind.scale for kind in architecture.kinds}) > 1:
        return "the model's layers multiply scores by different factors, but cuDNN's kernel by a single one"
    if attention.key_heads % devices:
        return f"the model has {attention.key_heads} key heads, which {devices} devices cannot divide"
    return None


def masks(architecture: Architecture, *, segments: tf.Tensor | None, length: int) -> tuple[Mask, ...]:
    """Returns a mask for each of `architecture.windows`.

    Args:
        architecture: The network's.
        segments: See Visibility; None if queries see no keys of other segments anyway.
        length: Tokens in a row.
    """
    causal, result = architecture.causal, []
    for window in architecture.windows:
        if segments is None and (causal or window is None):
            result.append(Mask(causal, window, None))
            continue
        # cuDNN has windows only for causal attention without a bias.
        visible = Visibility(False, window, segments).mask(length)[:, 0]
        bias = tf.where(visible, tf.constant(0, tf.bfloat16), tf.constant(_UNSEEN, tf.bfloat16))
        result.append(Mask(causal, None, bias))
    return tuple(result)


def attend_in_cudnn(
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    *,
    masks: Sequence[Mask],
    number: tf.Tensor | int,
    scale: float,
    kept: Kept,
) -> tf.Tensor:
    """Returns what attention.attend returns, [B, L, H, D] bfloat16. For a GPU only.

    Args:
        query: bfloat16[B, L, H, D].
        key: bfloat16[B, L, K, D]; each key head is for H / K neighbouring query heads.
        value: bfloat16[B, L, K, D].
        masks: Of all layers.
        number: Of the layer's among them.
        scale: Factor of the scores.
        kept: Keeps the kernel's statistics. If it has these and the context, the kernel does not run again.
    """
    context, statistics = kept.stored("context"), kept.stored("statistics")

    def run(*operands: tf.Tensor) -> list[tf.Tensor]:
        branches = [lambda mask=mask: _run(operands, mask=mask, scale=scale) for mask in masks]
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
            return run(query, key, value, sums, d_output, output)

        return (output, sums), gradient

    output, sums = core(query, key, value)
    kept("statistics", sums)
    return output


def _run(operands: Sequence[tf.Tensor], *, mask: Mask, scale: float) -> list[tf.Tensor]:
    """Runs one pass.

    Args:
        operands: Query, key, value; for the backward pass then statistics, float32[B, H, L], the output's gradient, and
            the output.
        mask: Which keys queries see.
        scale: Factor of the scores.

    Returns:
        Output and statistics, or the gradients of query, key and value.
    """
    query, key, *_ = operands
    rows, length, heads, size = query.shape
    is_forward = len(operands) == 3
    biases = [] if mask.bias is None else [mask.bias]
    # The output comes last, after the bias.
    inputs = [*operands, *biases] if is_forward else [*operands[:5], *biases, operands[5]]
    name = CALLS + ("Softmax" if mask.bias is None else "ScaleBiasSoftmax")

    def by_heads(tensor: tf.Tensor) -> list[int]:
        return [rows, tensor.shape[2], length, size]

    if is_forward:
        results = [(tf.bfloat16, by_heads(query)), (tf.float32, [rows, heads, length])]
    else:
        results = [(tf.bfloat16, by_heads(tensor)) for tensor in (query, key, key)]
        if mask.bias is not None:
            results.append((tf.bfloat16, mask.bias.shape.as_list()))
    results.append((tf.uint8, [0]))  # the compiler makes it as large as cuDNN's temporary memory
    outputs = custom_call(
        name + ("" if is_forward else "Backward"),
        inputs,
        _backend_config([rows, heads, length, length], mask, scale, is_forward),
        results,
    )
    arrays = outputs[: 1 if is_forward else 3]
    arrays = [tf.transpose(array, [0, 2, 1, 3]) for array in arrays]
    return [*arrays, outputs[1]] if is_forward else arrays


def _backend_config(scores: list[int], mask: Mask, scale: float, is_forward: bool) -> dict[str, Any]:
    """Returns the call's configuration, with the values and in the order of JAX's."""
    products = [name for name in _AXES if ("grad" in name) != is_forward]
    return {
        "operation_queue_id": "0",
        "cudnn_fmha_backend_config": {
            "algorithm": {
                "algo_id": "0",
                "math_type": "TENSOR_OP_MATH",
                "tuning_knobs": {"17": "1", "24": "0"},
                "is_cudnn_frontend": True,
                "workspace_size": "0",
            },
            "fmha_scale": scale,
            "intermediate_tensor_shape": {
                "element_type": "BF16",
                "dimensions": list(map(str, scores)),
                "tuple_shapes": [],
                "layout": {
                    "dim_level_types": [],
                    "dim_unique": [],
                    "dim_ordered": [],
                    "minor_to_major": ["3", "2", "1", "0"],
                    "tiles": [],
                    "element_size_in_bits": "0",
                    "memory_space": "0",
                    "index_primitive_type": "PRIMITIVE_TYPE_INVALID",
                    "pointer_primitive_type": "PRIMITIVE_TYPE_INVALID",
                    "dynamic_shape_metadata_prefix_bytes": "0",
                },
                "is_dynamic_dimension": [False] * 4,
            },
            "is_flash_attention": True,
            "mask_type": "CAUSAL" if mask.causal else "NO_MASK",
            **{f"{name}_dot_dimension_numbers": _numbers(*_AXES[name]) for name in products},
            "dropout_rate": 0.0,
            "seed": 42,
            "sliding_window_length": mask.window or 0,
            "max_seg_per_batch": 1,
            "is_paged_attention": False,
        },
    }


def _numbers(
    contracted: tuple[str, str], batch: tuple[tuple[str, str], tuple[str, str]]
) -> dict[str, list[str]]:
    return {
        "lhs_contracting_dimensions": [contracted[0]],
        "rhs_contracting_dimensions": [contracted[1]],
        "lhs_batch_dimensions": list(batch[0]),
        "rhs_batch_dimensions": list(batch[1]),
    }
