"""How checkpoints store the stacks of network/weights.py: layer by layer, under names with the layer's number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tpu_trainer.network.weights import STACKED


def stored_values(values: Mapping[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    """Yields stored name → array, without copies."""
    for name, value in values.items():
        if _is_stack(name):
            yield from ((_layer_name(name, number), layer) for number, layer in enumerate(value))
        else:
            yield name, value


def read_value(
    reader: Any, stored_shapes: Mapping[str, Sequence[int]], name: str, shape: Sequence[int]
) -> np.ndarray:
    """Reads an array, all layers of it if it is a stack.

    Args:
        reader: A tf.train.CheckpointReader.
        stored_shapes: Stored name → shape.
        name: The array's name.
        shape: Its shape.

    Raises:
        ValueError: If it is missing, or has another shape or number of layers.
    """
    if not _is_stack(name):
        _check(stored_shapes, name, shape)
        return reader.get_tensor(name)
    further = _layer_name(name, shape[0])
    if further in stored_shapes:
        raise ValueError(f"has {further!r}, but the model here has {shape[0]} layers")
    stack = None
    for number in range(shape[0]):
        layer = _layer_name(name, number)
        _check(stored_shapes, layer, shape[1:])
        value = reader.get_tensor(layer)
        if stack is None:
            stack = np.empty(shape, value.dtype)
        stack[number] = value
    return stack


def _check(stored_shapes: Mapping[str, Sequence[int]], name: str, shape: Sequence[int]) -> None:
    if stored_shapes.get(name) != list(shape):
        raise ValueError(f"{name!r} has shape {stored_shapes.get(name)} there and {list(shape)} here")


def _is_stack(name: str) -> bool:
    return name.rpartition("/")[2].startswith(STACKED)


def _layer_name(name: str, number: int) -> str:
    """Returns the stored name of a layer of a stack.

    Example: optimizer/mean/layers.mlp.up.weight, 3 → optimizer/mean/layers.3.mlp.up.weight
    """
    part, _, weight = name.rpartition("/")
    return f"{part}/{STACKED}{number}.{weight.removeprefix(STACKED)}"
