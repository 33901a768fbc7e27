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
import zipfile
from collections.abc import Callable
from importlib import resources
from typing import Any

import tensorflow as tf

from tpu_trainer.config import Precision
from tpu_trainer.network.architecture import Architecture
from tpu_trainer.network.attention import ProbabilitiesDropout
from tpu_trainer.network.custom_call import custom_call
from tpu_trainer.network.division import ONE_DEVICE, Division
from tpu_trainer.network.dropout import line_seeds, scale, threshold

HEAD_SIZE = 64
_SCALE = 1 / 8
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


def unsupported_reason(
    architecture: Architecture, *, length: int, division: Division = ONE_DEVICE
) -> str | None:
    """Returns why there is no kernel for the attention of a network; None if there is one.

    Args:
        architecture: The network's.
        length: Tokens in a row.
        division: How devices divide the attention.
    """
    attention, devices = architecture.attention, division.model
    if division.sequence > 1:
        return "--mesh.sequence divides rows, but the kernel needs whole ones"
    if attention.head_size != HEAD_SIZE:
        return f"the model's heads have {attention.head_size} dimensions, but the kernel's {HEAD_SIZE}"
    if attention.key_heads != attention.heads:
        return f"the model has {attention.key_heads} key heads for {attention.heads} heads; the kernel needs as many"
    if attention.soft_cap is not None:
        return "the model caps scores, but the kernel does not"
    if any(kind.window is not None for kind in architecture.kinds):
        return "the model has windows, but the kernel does not"
    if any(attention.scale * kind.scale != _SCALE for kind in architecture.kinds):
        return f"the model multiplies scores by another factor than the kernel's {_SCALE:g}"
    if attention.heads % (2 * devices):
        divided = (
            f", of which each of {devices} devices has {attention.heads / devices:g}" if devices > 1 else ""
        )
        return f"the model has {attention.heads} heads{divided}, but the kernel needs an even number"
    if length not in LENGTHS:
        return f"rows have {length} tokens, but there are kernels only for {', '.join(map(str, LENGTHS))}"
    return None


def attend_in_kernel(
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    *,
    causal: bool,
    segments: tf.Tensor | None,
    dropout: ProbabilitiesDropout,
    dtype: tf.DType,
) -> tf.Tensor:
    """Returns what attention.attend returns, [B, L, H, 64] in the inputs' dtype. For a TPU only.

    Args:
        query: [B, L, H, 64]. `unsupported_reason` must be None for its shape.
        key: [B, L, H, 64].
        value: [B, L, H, 64].
        causal: Whether queries attend only to keys up to their own position.
        segments: int32[B, L] below 2²⁴; see attention.Visibility.
        dropout: Of the probabilities.
        dtype: See kernel_dtype.
    """
    shape = query.shape
    rows, length, heads, size = shape
    if segments is None:
        segments = tf.zeros([rows, length], tf.int32)
    # The first line is a bias of the keys' scores, which the segments make superfluous.
    keys = tf.stack([tf.zeros([rows, length]), tf.cast(segments, tf.float32)], axis=1)
    least, factor, seeds = 0, 1.0, tf.zeros([2, rows, heads, length], tf.uint32)
    if dropout.key is not None and dropout.rate > 0:
        least, factor = threshold(dropout.rate), scale(dropout.rate)
        seeds = tf.stack(line_seeds(dropout.key, [rows, heads, length], dropout.place))
    operands = (
        tf.bitcast(tf.constant([least], tf.uint32), tf.int32),
        tf.constant([factor], tf.float32),
        _lines(seeds, segments),
        keys,
    )

    @tf.custom_gradient
    def core(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor) -> tuple[tf.Tensor, Callable[..., Any]]:
        (output,) = _run("forward", causal, *operands, query, key, value)

        def gradient(d_output: tf.Tensor) -> list[tf.Tensor]:
            return _run("backward", causal, *operands, query, key, value, d_output)

        return output, gradient

    flat = [rows, length, heads * size]
    output = core(*(tf.cast(tf.reshape(x, flat), dtype) for x in (query, key, value)))
    return tf.cast(tf.reshape(output, shape), query.dtype)


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
    return custom_call(
        "tpu_custom_call",
        [tf.constant(rows), tf.constant(width // LANES), *operands],
        {"custom_call_config": config},
        [(dtype, operands[-1].shape)] * results,
    )
