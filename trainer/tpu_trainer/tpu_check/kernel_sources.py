"""Pallas source of the attention kernels in network/attention_kernel.py. `make kernels` compiles them:

    python -m tpu_trainer.tpu_check.kernel_sources trainer/tpu_trainer/network/attention_kernels.zip

The archive contains Mosaic's portable bytecode, which the compilers of all TPU generations accept, so the trainer does
not need JAX. Each grid point computes a block of `block_queries` queries of a pair of heads in one row. The block sees
all of its keys at once, so each score exists only once, in on-chip memory.
"""

from __future__ import annotations

import functools
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tpu_trainer.network.attention_kernel import (
    BYTECODE_VERSION,
    DTYPES,
    HEAD_SIZE,
    LANES,
    LENGTHS,
    LINE_ROWS,
    UNSEEN,
    block_queries,
    member,
)
from tpu_trainer.tpu_check.compiler import mosaic_bytecode

_HEADS = LANES // HEAD_SIZE
# The axes of the two factors that a product contracts.
_ROWS_BY_COLUMNS = (((1,), (0,)), ((), ()))
_ROWS_BY_ROWS = (((1,), (1,)), ((), ()))
_COLUMNS_BY_COLUMNS = (((0,), (0,)), ((), ()))


def _product(a: jax.Array, b: jax.Array, dimensions: Any) -> jax.Array:
    return lax.dot_general(a, b, dimensions, preferred_element_type=jnp.float32)


def _int32(word: int) -> int:
    """Returns the int32 with the same bits: the vector unit has no uint32."""
    return int(np.array(word, np.uint32).view(np.int32))


def _shifted(bits: jax.Array, places: int) -> jax.Array:
    return bits ^ lax.shift_right_logical(bits, jnp.int32(places))


def _kept(first: jax.Array, second: jax.Array, keys: int, threshold: jax.Array) -> jax.Array:
    """Returns random_bits.line_bits(…) ≥ threshold as bool[queries, keys].

    Args:
        first: First random word of each query, int32[queries, 1].
        second: Second random word of each query, int32[queries, 1].
        keys: Number of keys.
        threshold: int32 with the bits of the uint32 threshold.
    """
    bits = first + lax.broadcasted_iota(jnp.int32, (first.shape[0], keys), 1) * _int32(0x9E3779B9)
    bits = _shifted(bits, 16) * _int32(0x7FEB352D)
    bits = (_shifted(bits, 15) ^ second) * _int32(0x846CA68B)
    top = _int32(0x80000000)  # with the sign bit flipped, signed numbers compare like unsigned ones
    return (_shifted(bits, 16) ^ top) >= (threshold ^ top)


def _probabilities(
    query: jax.Array, key: jax.Array, segments: jax.Array, keys: jax.Array, *, first: Any, causal: bool
) -> jax.Array:
    """Returns one head's attention probabilities, float32[queries, keys]. `first` is the index of the first query."""
    scores = _product(query, key, _ROWS_BY_ROWS) * HEAD_SIZE**-0.5 + keys[0:1]
    seen = segments.astype(jnp.float32) == keys[1:2]
    if causal:
        place = lax.broadcasted_iota(jnp.int32, scores.shape, 0) + first
        seen = seen & (lax.broadcasted_iota(jnp.int32, scores.shape, 1) <= place)
    scores = jnp.where(seen, scores, UNSEEN)
    exponentials = jnp.exp(scores - jnp.max(scores, axis=1, keepdims=True))
    return exponentials / jnp.sum(exponentials, axis=1, keepdims=True)


def _for_block(length: int, causal: bool, body: Callable[[Any, int], None]) -> None:
    """Calls `body` with the index of the block's first query and the number of keys that the block can see."""
    queries = block_queries(length, causal=causal)
    if not causal:
        body(pl.program_id(2) * queries, length)
        return
    for block in range(length // queries):  # one branch per block, since shapes are static
        pl.when(pl.program_id(2) == block)(functools.partial(body, block * queries, (block + 1) * queries))


def _heads(lines: Any) -> list[tuple[slice, jax.Array, jax.Array]]:
    """Returns the lanes and the two random words of the queries, int32[queries, 1], for each head in the block."""
    return [
        (
            slice(HEAD_SIZE * head, HEAD_SIZE * (head + 1)),
            lines[:, 2 * head : 2 * head + 1],
            lines[:, 2 * head + 1 : 2 * head + 2],
        )
        for head in range(_HEADS)
    ]


def _forward(
    threshold: Any, scale: Any, lines: Any, keys: Any, query: Any, key: Any, value: Any, output: Any,
    *, length: int, causal: bool,
) -> None:  # fmt: skip
    def body(first: Any, seen: int) -> None:
        of_query = lines[0, 0].T
        segments = of_query[:, 2 * _HEADS : 2 * _HEADS + 1]
        for lanes, *words in _heads(of_query):
            p = _probabilities(
                query[0, :, lanes],
                key[0, :seen, lanes],
                segments,
                keys[0, :, :seen],
                first=first,
                causal=causal,
            )
            p = jnp.where(_kept(*words, seen, threshold[0]), p * scale[0], 0.0).astype(value.dtype)
            output[0, :, lanes] = _product(p, value[0, :seen, lanes], _ROWS_BY_COLUMNS).astype(output.dtype)

    _for_block(length, causal, body)


def _backward(
    threshold: Any, scale: Any, lines: Any, keys: Any, query: Any, key: Any, value: Any, d_output: Any,
    d_query: Any, d_key: Any, d_value: Any, d_key_sum: Any, d_value_sum: Any,
    *, length: int, causal: bool,
) -> None:  # fmt: skip
    """Algorithm 4 of Dao et al., "FlashAttention" (2022), with all keys of a query in one block."""

    @pl.when(pl.program_id(2) == 0)
    def _() -> None:
        d_key_sum[...] = jnp.zeros_like(d_key_sum)
        d_value_sum[...] = jnp.zeros_like(d_value_sum)

    def body(first: Any, seen: int) -> None:
        of_query = lines[0, 0].T
        segments = of_query[:, 2 * _HEADS : 2 * _HEADS + 1]
        for lanes, *words in _heads(of_query):
            q, k, v, d_o = (
                query[0, :, lanes],
                key[0, :seen, lanes],
                value[0, :seen, lanes],
                d_output[0, :, lanes],
            )
            p = _probabilities(q, k, segments, keys[0, :, :seen], first=first, causal=causal)
            kept = _kept(*words, seen, threshold[0])
            dropped = jnp.where(kept, p * scale[0], 0.0).astype(v.dtype)
            d_value_sum[:seen, lanes] += _product(dropped, d_o, _COLUMNS_BY_COLUMNS)
            d_p = jnp.where(kept, _product(d_o, v, _ROWS_BY_ROWS) * scale[0], 0.0)
            d_scores = p * (d_p - jnp.sum(p * d_p, axis=1, keepdims=True)) * HEAD_SIZE**-0.5
            d_scores = d_scores.astype(q.dtype)
            d_query[0, :, lanes] = _product(d_scores, k, _ROWS_BY_COLUMNS).astype(d_query.dtype)
            d_key_sum[:seen, lanes] += _product(d_scores, q, _COLUMNS_BY_COLUMNS)

    _for_block(length, causal, body)

    @pl.when(pl.program_id(2) == length // block_queries(length, causal=causal) - 1)
    def _() -> None:
        d_key[0] = d_key_sum[...].astype(d_key.dtype)
        d_value[0] = d_value_sum[...].astype(d_value.dtype)


def kernel(
    name: str, *, dtype: str, causal: bool, length: int, rows: Any, blocks: Any, interpret: Any = False
) -> Callable[..., Any]:
    """Returns the forward or backward pass as a function of the arrays that network/attention_kernel.py describes.

    Args:
        name: `forward` or `backward`.
        dtype: The dtype of queries, keys and values.
        causal: Whether queries see no later keys.
        length: Tokens per row.
        rows: Rows in the batch, an int or a scalar array.
        blocks: Number of pairs of heads, an int or a scalar array.
        interpret: Pallas' option to run without a TPU.
    """
    queries = block_queries(length, causal=causal)
    scalar = pl.BlockSpec(memory_space=pltpu.SMEM)
    line = pl.BlockSpec((1, 1, LINE_ROWS, queries), lambda row, block, part: (row, block, 0, part))
    keys = pl.BlockSpec((1, 2, length), lambda row, block, part: (row, 0, 0))
    some = pl.BlockSpec((1, queries, LANES), lambda row, block, part: (row, part, block))
    every = pl.BlockSpec((1, length, LANES), lambda row, block, part: (row, 0, block))
    inputs = [scalar, scalar, line, keys, some, every, every]

    def call(*arrays: jax.Array) -> Any:
        like = jax.ShapeDtypeStruct(arrays[-1].shape, jnp.dtype(dtype))
        common = {
            "grid": (rows, blocks, length // queries),
            "interpret": interpret,
            "name": "main",  # older compilers require this name
            # On chips with two cores (v4, v5p), "parallel" splits rows and heads between the cores.
            "compiler_params": pltpu.CompilerParams(
                dimension_semantics=("parallel", "parallel", "arbitrary")
            ),
        }
        if name == "forward":
            body = functools.partial(_forward, length=length, causal=causal)
            return pl.pallas_call(body, out_shape=like, in_specs=inputs, out_specs=some, **common)(*arrays)
        body = functools.partial(_backward, length=length, causal=causal)
        return pl.pallas_call(
            body,
            out_shape=[like] * 3,
            in_specs=[*inputs, some],
            out_specs=[some, every, every],
            scratch_shapes=[pltpu.VMEM((length, LANES), jnp.float32)] * 2,
            **common,
        )(*arrays)

    return call


def bytecode(name: str, *, dtype: str, causal: bool, length: int) -> bytes:
    """Compiles a kernel for any number of rows and heads: the bounds of its grid are its first two operands."""

    def function(rows: jax.Array, blocks: jax.Array, *arrays: jax.Array) -> Any:
        call = kernel(name, dtype=dtype, causal=causal, length=length, rows=rows, blocks=blocks)
        return call(*arrays)

    shape = jax.ShapeDtypeStruct
    part = shape((1, length, LANES), jnp.dtype(dtype))
    arrays = [
        shape((), jnp.int32),
        shape((), jnp.int32),
        shape((1,), jnp.int32),
        shape((1,), jnp.float32),
        shape((1, 1, LINE_ROWS, length), jnp.int32),
        shape((1, 2, length), jnp.float32),
        *[part] * (3 if name == "forward" else 4),
    ]
    return mosaic_bytecode(function, arrays, version=BYTECODE_VERSION)


def main() -> None:
    """Writes the archive. Its bytes are deterministic."""
    with zipfile.ZipFile(Path(sys.argv[1]), "w") as archive:
        for name in ("forward", "backward"):
            for dtype in DTYPES:
                for causal in (False, True):
                    for length in LENGTHS:
                        path = member(name, dtype=dtype, causal=causal, length=length)
                        # A fixed date, for deterministic bytes: the default is the current time.
                        info = zipfile.ZipInfo(path, date_time=(1980, 1, 1, 0, 0, 0))
                        info.compress_type = zipfile.ZIP_DEFLATED
                        archive.writestr(info, bytecode(name, dtype=dtype, causal=causal, length=length))


if __name__ == "__main__":
    main()
