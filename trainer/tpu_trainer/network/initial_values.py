"""Initial values of variables, which can be computed later and one at a time: a model may be larger than the host."""

from __future__ import annotations

import ctypes
import functools
import mmap
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import numpy as np
import tensorflow as tf

# Smaller variables have their values from the start.
_LEAST_ELEMENTS = 1 << 16
_PURE = ()
_ASSIGNMENTS = ("assign", "assign_add", "assign_sub")
Make = Callable[[], Any]
"""Returns a value: a tensor or an array."""


class InitialValues:
    """The initial values of variables: their own, or of those created in `postponed`, what computes them.

    The values are the same bits in both cases.
    """

    def __init__(self) -> None:
        self._makers: dict[str, Make] = {}  # by the variable's name

    @contextmanager
    def postponed(self) -> Iterator[None]:
        """Context in which large new variables get no memory: they are 0, in pages that the system does not provide
        before they are written. Their values are those of `value`; those of other variables are computed at once."""
        watched: list[tf.Variable] = []

        def create(next_creator: Callable[..., tf.Variable], **arguments: Any) -> tf.Variable:
            shape, dtype, make = _postponed(arguments)
            if make is None:
                return next_creator(**arguments)
            # `initial_value` must not be computed: it may be larger than the memory that is free.
            del arguments["initial_value"]
            _return_memory()
            arguments["initial_value"] = _unwritten(shape, tf.as_dtype(dtype))
            variable = next_creator(**arguments)
            if variable.name in self._makers:
                raise ValueError(f"two variables are named {variable.name!r}")
            self._makers[variable.name] = make
            for name in _ASSIGNMENTS:
                setattr(variable, name, functools.partial(self._assign_now, variable, name))
            watched.append(variable)
            return variable

        try:
            with tf.variable_creator_scope(create):
                yield
        finally:
            for variable in watched:
                for name in _ASSIGNMENTS:
                    vars(variable).pop(name, None)

    def _assign_now(self, variable: tf.Variable, name: str, *arguments: Any, **options: Any) -> Any:
        """The variables' assignments in `postponed`, for code that does not know of it."""
        make = self._makers.pop(variable.name, None)
        if make is not None and name != "assign":
            type(variable).assign(variable, make())
        return getattr(type(variable), name)(variable, *arguments, **options)

    def variable(self, name: str, shape: tuple[int, ...], make: Make, *, trainable: bool = True) -> tf.Variable:
        """Creates a float32 variable."""
        return tf.Variable(make(), name=name, trainable=trainable)

    def assign(self, variable: tf.Variable, make: Make, *, value: Any = None) -> None:
        """Replaces the value of a variable by what `make` returns; `value` is that, if it is known already."""
        if self._postponed_value(variable) is not None:
            self._makers[variable.name] = make
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
        with warnings.catch_warnings():
            # Of initializers that are called again, for a copy of the variable.
            warnings.simplefilter("ignore")
            return np.asarray(make())

    def _postponed_value(self, variable: tf.Variable) -> Make | None:
        """Returns what computes a variable's value; None if it has its value."""
        return self._makers.get(variable.name)

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


def _unwritten(shape: tf.TensorShape, dtype: tf.DType) -> tf.Tensor:
    """Returns zeros in new pages: a large array of NumPy may be in used ones, which NumPy would clear."""
    pages = mmap.mmap(-1, shape.num_elements() * dtype.size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    zeros = np.frombuffer(pages, dtype.as_numpy_dtype).reshape(shape.as_list())
    return tf.experimental.dlpack.from_dlpack(zeros.__dlpack__())


def _postponed(arguments: dict[str, Any]) -> tuple[tf.TensorShape, Any, Make | None]:
    """Returns shape, dtype and what computes the value of a large variable; None for others and for unknown values."""
    value, shape, dtype = (arguments.get(name) for name in ("initial_value", "shape", "dtype"))
    if not callable(value):
        value = tf.convert_to_tensor(value, dtype)
        arguments["initial_value"] = value
        shape, dtype = value.shape, value.dtype
    shape = tf.TensorShape(shape)
    if not shape.is_fully_defined() or shape.num_elements() < _LEAST_ELEMENTS:
        return shape, dtype, None
    if not callable(value):  # slots of the optimizer
        zeros = functools.partial(np.zeros, shape.as_list(), dtype.as_numpy_dtype)
        return shape, dtype, None if np.any(value) else zeros
    # Keras' make_variable calls the initializer with a shape.
    initializer = value.func if isinstance(value, functools.partial) else None
    generator = getattr(initializer, "_random_generator", None)
    if getattr(generator, "_rng_type", None) == "stateless":
        # Draws the generator's seed at its turn. Then the values are a function of seed and shape.
        generator.make_seed_for_stateless_op()
        return shape, dtype, value
    return shape, dtype, value if isinstance(initializer, _PURE) else None
