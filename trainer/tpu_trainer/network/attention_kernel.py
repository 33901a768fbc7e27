"""Attention on a TPU as one kernel per pass, which keeps all scores in on-chip memory.

XLA compiles each matrix product of attention to a separate operation, so scores and probabilities (rows · heads ·
length²) move to and from memory several times. The kernel (tpu_check/kernel_sources.py) processes a block of queries
against all of their keys at once. It reads queries, keys and values and writes the output, and recomputes the
probabilities in the backward pass. It is equivalent to attention.attend with the same dropout bits; scores and softmax
are float32.

attention_kernels.zip contains the bytecode of a kernel for each dtype, mask and length, for any number of rows and
heads.
"""

from __future__ import annotations

import base64
import functools
import json
import zipfile
from collections.abc import Callable
from importlib import resources
from typing import Any

import tensorflow as tf

from tpu_trainer.config import Precision
from tpu_trainer.network.dropout import KeyedDropout

HEAD_SIZE = 64
LANES = 128
"""Lanes of a TPU's vector registers: a block has two heads."""
LENGTHS = (128, 256, 512, 1024, 2048)
DTYPES = ("bfloat16", "float32")
LINE_ROWS = 8
"""Sublanes of a vector register; the kernel's `lines` operand uses 5 of them."""
UNSEEN = -1e9
BYTECODE_VERSION = 7
"""Version of Mosaic's format: the newest that libtpu 0.0.21, the release for tensorflow-tpu 2.20, can read."""
# Maximum scores of one head in a block: 1 MB in float32. A kernel has about ten such arrays in its 16 MB of memory.
_BLOCK_SCORES = 2**18
# Smaller blocks compute fewer scores above the diagonal, which are wasted: half a square per block.
_CAUSAL_QUERIES = 256


def block_queries(length: int, *, causal: bool) -> int:
    """Returns the number of queries in a block: the largest divisor of `length` that fits in memory."""
    max_queries = min(length, _BLOCK_SCORES // length, _CAUSAL_QUERIES if causal else length)
    return max(queries for queries in range(LANES, max_queries + 1, LANES) if length % queries == 0)


def member(name: str, *, dtype: str, causal: bool, length: int) -> str:
    """Returns a kernel's file name in the archive; `name` is forward or backward."""
    return f"{name}-{dtype}-{'causal' if causal else 'full'}-{length}.mlirbc"


@functools.cache
def _bytecode(path: str) -> str:
    archive = resources.files(__package__).joinpath("attention_kernels.zip")
    with archive.open("rb") as file, zipfile.ZipFile(file) as kernels:
        return base64.b64encode(kernels.read(path)).decode()


def kernel_dtype(precision: Precision, tpu: str) -> tf.DType:
    """Returns the dtype of a kernel's inputs. Kernels on TPU v2 and v3 do not support bfloat16 products."""
    return tf.bfloat16 if precision == "mixed_bfloat16" and tpu not in ("v2", "v3") else tf.float32


def unsupported_reason(*, heads: int, head_size: int, length: int, devices: int = 1) -> str | None:
    """Returns why there is no kernel for this attention; None if there is one.

    Args:
        heads: Of the model.
        head_size: Dimensions of a head.
        length: Tokens in a row.
        devices: Devices that divide the heads.
    """
    if head_size != HEAD_SIZE:
        return f"the model's heads have {head_size} dimensions, but the kernel's {HEAD_SIZE}"
    if heads % (2 * devices):
        divided = f", of which each of {devices} devices has {heads / devices:g}" if devices > 1 else ""
        return f"the model has {heads} heads{divided}, but the kernel needs an even number"
    if length not in LENGTHS:
        return f"rows have {length} tokens, but there are kernels only for {', '.join(map(str, LENGTHS))}"
    return None


def attend_in_kernel(
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    *,
    causal: bool,
    key_bias: tf.Tensor | None,
    segment_ids: tf.Tensor | None,
    dropout: KeyedDropout | None,
    dtype: tf.DType,
) -> tf.Tensor:
    """Returns the output of attention, heads concatenated: [B, L, H · 64] in the inputs' dtype. For a TPU only.

    Args:
        query: [B, L, H · 64], the projection's output. `unsupported_reason` must be None for its shape.
        key: [B, L, H · 64].
        value: [B, L, H · 64].
        causal: Whether queries attend only to keys up to their own position.
        key_bias: float[B, L], added to every score of a key; gets no gradient. None: 0.
        segment_ids: int32[B, L] below 2²⁴; queries attend only to keys of their segment. None: to all.
        dropout: Dropout layer of the probabilities; None: no dropout.
        dtype: See kernel_dtype.
    """
    rows, length, width = query.shape
    heads = width // HEAD_SIZE
    if segment_ids is None:
        segment_ids = tf.zeros([rows, length], tf.int32)
    if key_bias is None:
        key_bias = tf.zeros([rows, length])
    keys = tf.stack([tf.cast(key_bias, tf.float32), tf.cast(segment_ids, tf.float32)], axis=1)
    threshold, scale, seeds = 0, 1.0, tf.zeros([2, rows, heads, length], tf.uint32)
    if dropout is not None:
        threshold, scale = dropout.threshold, dropout.scale
        seeds = tf.stack(dropout.seeds([rows, heads, length]))
    operands = (
        tf.bitcast(tf.constant([threshold], tf.uint32), tf.int32),
        tf.constant([scale], tf.float32),
        _lines(seeds, segment_ids),
        keys,
    )

    @tf.custom_gradient
    def core(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor) -> tuple[tf.Tensor, Callable[..., Any]]:
        (output,) = _run("forward", causal, *operands, query, key, value)

        def gradient(d_output: tf.Tensor) -> list[tf.Tensor]:
            return _run("backward", causal, *operands, query, key, value, d_output)

        return output, gradient

    return tf.cast(core(*(tf.cast(x, dtype) for x in (query, key, value))), query.dtype)


def _lines(seeds: tf.Tensor, segment_ids: tf.Tensor) -> tf.Tensor:
    """Returns int32[B, H / 2, 8, L]: for each query, two seeds for each head of the pair, and the segment.

    Example: of one row with two heads, A and B, and queries 0 … L - 1, the result's eight lines are
        A's first seeds, A's second seeds, B's first seeds, B's second seeds, segment_ids, zeros, zeros, zeros
    """
    _, rows, heads, length = seeds.shape
    head_seeds = tf.reshape(tf.transpose(seeds, [1, 2, 0, 3]), [rows, heads // 2, 4, length])
    segments = tf.broadcast_to(segment_ids[:, None, None, :], [rows, heads // 2, 1, length])
    unused = tf.zeros([rows, heads // 2, LINE_ROWS - 5, length], tf.int32)
    return tf.concat([tf.bitcast(head_seeds, tf.int32), segments, unused], axis=2)


def _run(name: str, causal: bool, *operands: tf.Tensor) -> list[tf.Tensor]:
    # There is no public API for this operation.
    from tensorflow.compiler.tf2xla.ops import gen_xla_ops

    rows, length, width = operands[-1].shape
    dtype = operands[-1].dtype
    heads = width // HEAD_SIZE
    results = 1 if name == "forward" else 3
    queries = block_queries(length, causal=causal)
    scores = rows * heads * length * length
    if causal:
        scores = rows * heads * sum(queries * (start + queries) for start in range(0, length, queries))
    config = {
        "body": _bytecode(member(name, dtype=dtype.name, causal=causal, length=length)),
        "serialization_format": 1,
        "needs_layout_passes": True,
        # The compiler uses these for scheduling and cost reports. The passes have two and five matrix products.
        "cost_estimate": {
            "flops": 2 * HEAD_SIZE * scores * (2 if name == "forward" else 5),
            "transcendentals": scores,
            "bytes_accessed": sum(x.shape.num_elements() * x.dtype.size for x in operands)
            + results * operands[-1].shape.num_elements() * dtype.size,
        },
    }
    return gen_xla_ops.xla_custom_call_v2(
        operands=[tf.constant(rows), tf.constant(width // LANES), *operands],
        call_target_name="tpu_custom_call",
        backend_config=json.dumps({"custom_call_config": config}),
        has_side_effect=False,
        result_dtypes=[dtype] * results,
        result_shapes=[operands[-1].shape] * results,
    )
