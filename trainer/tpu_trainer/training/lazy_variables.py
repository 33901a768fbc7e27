"""Variables without memory, to lower the step of a model that is larger than the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

# Smaller variables keep their initial values.
_LEAST_ELEMENTS = 1 << 16


@contextmanager
def lazy_variables() -> Iterator[None]:
    """In this context, large new variables are 0, in pages that the system does not provide before they are written."""

    def create(next_creator: Callable[..., tf.Variable], **arguments: Any) -> tf.Variable:
        value = arguments["initial_value"]
        shape, dtype = arguments.get("shape"), arguments.get("dtype")
        if not callable(value):
            value = tf.convert_to_tensor(value, dtype)
            shape, dtype = value.shape, value.dtype
        shape = tf.TensorShape(shape)
        if shape.is_fully_defined() and shape.num_elements() >= _LEAST_ELEMENTS:
            zeros = np.zeros(shape.as_list(), tf.as_dtype(dtype).as_numpy_dtype)
            arguments["initial_value"] = tf.experimental.dlpack.from_dlpack(zeros.__dlpack__())
        return next_creator(**arguments)

    with tf.variable_creator_scope(create):
        yield
