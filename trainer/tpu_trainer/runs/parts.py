"""How checkpoints store the state: in the parts that devices have, and the stacks of network/weights.py layer by layer.

A checkpoint is in TensorFlow's format, whose index knows which parts of an array are where. So any part of it can be
read, whatever the mesh that wrote it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import EllipsisType

import numpy as np
import tensorflow as tf

from tpu_trainer.network.weights import STACKED
from tpu_trainer.support.errors import UsageError

_FILE_BYTES = 256 << 20
"""Bytes of a file of a checkpoint, or more. TensorFlow copies what it writes into one."""


@dataclass(frozen=True)
class Part:
    """A rectangular part of an array."""

    shape: tuple[int, ...]
    """The shape of the whole array."""
    start: tuple[int, ...]
    """Index of the part's first element."""
    values: np.ndarray

    @classmethod
    def whole(cls, values: np.ndarray) -> Part:
        """Returns the part that is the whole array."""
        return cls(values.shape, (0,) * values.ndim, values)

    def layers(self) -> Iterator[tuple[int, Part]]:
        """Yields the number of each layer of a stack, and its part of the layer."""
        for number, values in enumerate(self.values, self.start[0]):
            yield number, Part(self.shape[1:], self.start[1:], values)


Parts = Mapping[str, Sequence[Part]]
"""Name of an array → the parts of it that a process has."""


def whole_parts(values: Mapping[str, np.ndarray]) -> dict[str, list[Part]]:
    """Returns the parts of a process that has whole arrays."""
    return {name: [Part.whole(value)] for name, value in values.items()}


def write_parts(prefix: str, parts: Parts) -> list[str]:
    """Writes parts in TensorFlow's format, some of them at a time. Returns the prefixes of the files.

    Raises:
        OSError, tf.errors.OpError: If they cannot be written.
    """
    prefixes = []
    for number, batch in enumerate(_batches(_stored(parts))):
        prefixes.append(f"{prefix}-{number:05d}")
        tf.raw_ops.SaveV2(
            prefix=prefixes[-1],
            tensor_names=[name for name, _ in batch],
            shape_and_slices=[_region(part.shape, part.start, part.values.shape) for _, part in batch],
            tensors=[part.values for _, part in batch],
        )
    return prefixes


class StoredArray:
    """An array in a checkpoint, of which any part can be read."""

    def __init__(
        self, prefix: str, names: Sequence[str], shape: Sequence[int], dtype: tf.DType, *, is_stack: bool
    ) -> None:
        """
        Args:
            prefix: The checkpoint's.
            names: The array's name there; of a stack, those of its layers.
            shape: The array's shape.
            dtype: Its dtype.
            is_stack: Whether it is a stack.
        """
        self.shape = tuple(shape)
        self._prefix = prefix
        self._names = names
        self._dtype = dtype
        self._is_stack = is_stack

    def __getitem__(self, index: tuple[slice, ...] | EllipsisType) -> np.ndarray:
        """Reads a part of the array, or, with `...`, all of it.

        Raises:
            UsageError: If it cannot be read.
        """
        if index is ...:
            index = (slice(None),) * len(self.shape)
        ranges = [range(size)[part] for size, part in zip(self.shape, index, strict=True)]
        names = self._names[index[0]] if self._is_stack else self._names
        first = 1 if self._is_stack else 0
        region = _region(
            self.shape[first:],
            [each.start for each in ranges[first:]],
            [len(each) for each in ranges[first:]],
        )
        try:
            values = tf.raw_ops.RestoreV2(
                prefix=self._prefix,
                tensor_names=names,
                shape_and_slices=[region] * len(names),
                dtypes=[self._dtype] * len(names),
            )
        except tf.errors.OpError as error:
            raise _unreadable(self._prefix, error) from error
        return np.stack(values) if self._is_stack else values[0].numpy()


def stored_arrays(
    prefix: str, shapes: Mapping[str, Sequence[int]], *, resized: Sequence[str] = ()
) -> Iterator[tuple[str, np.ndarray | StoredArray]]:
    """Yields the (name, array) pairs of a checkpoint.

    Args:
        prefix: The checkpoint's.
        shapes: Name → shape of each array; can be a subset of the checkpoint.
        resized: Names of vectors that are filled up with zeros, or cut, to their length: of sums of sources, which
            later stages can have more or fewer of.

    Raises:
        UsageError: If an array is missing or has another shape or number of layers, or the checkpoint cannot be read.
    """
    try:
        reader = tf.train.load_checkpoint(prefix)
        stored_shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    except (ValueError, tf.errors.OpError) as error:
        raise _unreadable(prefix, error) from error
    for name, shape in shapes.items():
        is_stack, stored_shape = _is_stack(name), stored_shapes.get(name)
        if name in resized and stored_shape is not None and len(stored_shape) == 1:
            values = StoredArray(prefix, [name], stored_shape, dtypes[name], is_stack=False)[...][: shape[0]]
            yield name, np.pad(values, (0, shape[0] - values.size))
            continue
        names = [_layer_name(name, number) for number in range(shape[0])] if is_stack else [name]
        for each in names:
            if stored_shapes.get(each) != list(shape[is_stack:]):
                raise UsageError(
                    f"{prefix}: {each!r} has shape {stored_shapes.get(each)} there and {list(shape[is_stack:])} here: "
                    "the checkpoint is from another model"
                )
        if is_stack and (further := _layer_name(name, shape[0])) in stored_shapes:
            raise UsageError(
                f"{prefix}: has {further!r}, but the model here has {shape[0]} layers: the checkpoint is from another "
                "model"
            )
        yield name, StoredArray(prefix, names, shape, dtypes[names[0]], is_stack=is_stack)


def _unreadable(prefix: str, error: Exception) -> UsageError:
    folder = prefix.rpartition("/")[0]
    return UsageError(
        f"{prefix}: cannot be read ({error}); if it is damaged, remove {folder} to use the previous checkpoint"
    )


def _stored(parts: Parts) -> Iterator[tuple[str, Part]]:
    """Yields the stored name of each part, without copies. A stack has a name for each layer."""
    for name, each in parts.items():
        for part in each:
            if _is_stack(name):
                yield from ((_layer_name(name, number), layer) for number, layer in part.layers())
            else:
                yield name, part


def _batches(parts: Iterable[tuple[str, Part]]) -> Iterator[list[tuple[str, Part]]]:
    """Yields the parts of each file."""
    batch: list[tuple[str, Part]] = []
    size = 0
    for name, part in parts:
        batch.append((name, part))
        size += part.values.nbytes
        if size >= _FILE_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _region(shape: Sequence[int], start: Sequence[int], sizes: Sequence[int]) -> str:
    """Returns TensorFlow's text for a part of an array; see tf.raw_ops.SaveV2.

    >>> _region([4, 6], [0, 3], [4, 2])
    '4 6 -:3,2'
    """
    if tuple(sizes) == tuple(shape):
        return ""
    ranges = (
        "-" if size == whole else f"{first},{size}"
        for whole, first, size in zip(shape, start, sizes, strict=True)
    )
    return f"{' '.join(map(str, shape))} {':'.join(ranges)}"


def _is_stack(name: str) -> bool:
    return name.rpartition("/")[2].startswith(STACKED)


def _layer_name(name: str, number: int) -> str:
    """Returns the stored name of a layer of a stack.

    Example: optimizer/mean/layers.mlp.up.weight, 3 → optimizer/mean/layers.3.mlp.up.weight
    """
    part, _, weight = name.rpartition("/")
    return f"{part}/{STACKED}{number}.{weight.removeprefix(STACKED)}"
