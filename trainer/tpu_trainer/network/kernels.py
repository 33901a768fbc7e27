"""The kernels that compute attention on accelerators."""

from __future__ import annotations

from typing import Literal, NamedTuple

import tensorflow as tf

KernelName = Literal["mosaic", "splash", "cudnn"]
"""mosaic: attention_kernel.py, on TPUs; splash: splash_attention.py, on TPUs; cudnn: cudnn_attention.py, on GPUs."""


class Kernel(NamedTuple):
    """A kernel of attention."""

    name: KernelName
    dtype: tf.DType
    """Of queries, keys and values."""
