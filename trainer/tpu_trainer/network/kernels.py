"""The kernels that compute attention on accelerators."""

from __future__ import annotations

from typing import Literal, NamedTuple

import tensorflow as tf


class Kernel(NamedTuple):
    """A kernel of attention."""

    name: Literal["mosaic", "cudnn"]
    """mosaic: attention_kernel.py, on TPUs; cudnn: cudnn_attention.py, on GPUs."""
    dtype: tf.DType
    """Of queries, keys and values."""
