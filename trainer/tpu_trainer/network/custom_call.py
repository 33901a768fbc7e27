"""Calls of what XLA has no operation for, such as kernels."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def custom_call(
    target: str,
    operands: Sequence[tf.Tensor],
    config: Any,
    results: Sequence[tuple[tf.DType, Sequence[int]]],
) -> list[tf.Tensor]:
    """Adds a call to a graph that XLA compiles.

    Args:
        target: The name of what is called.
        operands: Its operands.
        config: Its configuration, which becomes JSON.
        results: The dtype and shape of each result.
    """
    # There is no public API for this operation.
    from tensorflow.compiler.tf2xla.ops import gen_xla_ops

    return gen_xla_ops.xla_custom_call_v2(
        operands=operands,
        call_target_name=target,
        backend_config=json.dumps(config),
        has_side_effect=False,
        result_dtypes=[dtype for dtype, _ in results],
        result_shapes=[shape for _, shape in results],
    )
