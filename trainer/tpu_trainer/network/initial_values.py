"""Initial values of variables, which can be computed later and one at a time: a model may be larger than the host."""

from __future__ import annotations

import ctypes
import math
import mmap
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Protocol

import numpy as np
import tensorflow as tf

# Linux otherwise refuses an array larger than the memory, even if nothing is ever written to it. Python 3.13 has the
# name.
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)

# Smaller variables have their values from the start.
_LEAST_ELEMENTS = 1 << 16
Make = Callable[[], Any]
"""Returns a value: a tensor or an array. A pure function: it may be called later, or several times."""


class MakeVariable(Protocol):
    """Creates a variable: see `InitialValues.variable`."""

    def __call__(
        self,
        name: str,
        shape: Sequence[int],
        make: Make,
        *,
        trainable: bool = True,
        dtype: tf.DType = tf.float32,
    ) -> tf.Variable: ...


class InitialValues:
    """Creates variables and has their initial values: their own, or those of postponed ones, which it computes.

    The values are the same bits in both cases.
    """

    def __init__(self, *, postpone: bool = False) -> None:
        """With `postpone`, large variables get no memory: they are 0, in pages that the system does not provide before
        they are written. Their values are those of `value`; those of other variables are computed at once."""
        self._postpone = postpone
        self._makers: dict[Any, Make] = {}  # by the variable's reference

    def variable(
        self,
        name: str,
        shape: Sequence[int],
        make: Make,
        *,
        trainable: bool = True,
        dtype: tf.DType = tf.float32,
    ) -> tf.Variable:
        """Creates a variable.

        Args:
            name: Its name in checkpoints, such as network/final_norm.weight.
            shape: Its shape.
            make: Computes its initial value, of this shape and dtype.
            trainable: Whether gradients are computed with respect to it.
            dtype: Its type.
        """
        if not self._postpone or math.prod(shape) < _LEAST_ELEMENTS:
            value = tf.convert_to_tensor(make(), dtype)
            if value.shape != tf.TensorShape(shape):
                raise ValueError(f"the initial value of {name!r} has shape {value.shape}, not {list(shape)}")
            return tf.Variable(value, trainable=trainable, name=name)
        _return_memory()
        variable = tf.Variable(_unwritten(shape, dtype), trainable=trainable, name=name)
        self._makers[variable.ref()] = make
        return variable

    def assign(self, variable: tf.Variable, make: Make, *, value: Any = None) -> None:
        """Replaces the value of a variable by what `make` returns; `value` is that, if it is known already."""
        if self._postponed_value(variable) is not None:
            self._makers[variable.ref()] = make
        else:
            variable.assign(make() if value is None else value)

    def copy(self, source: tf.Variable, *, target: tf.Variable) -> None:
        """Gives a variable the value of another."""
        self.assign(target, self._postponed_value(source) or (lambda: source))

    def value(self, variable: tf.Variable) -> np.ndarray:
        """Returns, and may compute, the value of a variable."""
        make = self._postponed_value(variable)
        if make is None:
            return variable.numpy()
        _return_memory()  # of the variable before
        return np.asarray(make(), variable.dtype.as_numpy_dtype)

    def _postponed_value(self, variable: tf.Variable) -> Make | None:
        """Returns what computes a variable's value; None if it has its value."""
        return self._makers.get(variable.ref())

    def release(self) -> None:
        """Forgets what computes the values, with all that it holds."""
        self._makers = dict.fromkeys(self._makers, _released)


def _released() -> NoReturn:
    raise RuntimeError("the initial values are released")


def _return_memory() -> None:
    """Returns freed memory to the system: among smaller blocks, a large one is often not used again."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)


def _unwritten(shape: Sequence[int], dtype: tf.DType) -> tf.Tensor:
    """Returns zeros in new pages: a large array of NumPy may be in used ones, which NumPy would clear."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
    pages = mmap.mmap(-1, math.prod(shape) * dtype.size, flags=flags)
    zeros = np.frombuffer(pages, dtype.as_numpy_dtype).reshape(shape)
    return tf.experimental.dlpack.from_dlpack(zeros.__dlpack__())
