"""Converts weights to the names and layouts of PyTorch's class, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tpu_trainer.network.architecture import Architecture
from tpu_trainer.network.families.family import Family, Fused, Fusion
from tpu_trainer.network.weights import STACKED, weight_specs


@dataclass(frozen=True)
class Stored:
    """A weight of PyTorch's class, and those of ours that make it up."""

    name: str
    parts: tuple[str, ...]
    """Names of our weights."""
    index: tuple[int, ...]
    """Of stacks, the layer, and the expert if there are several; (): the weights are no stacks."""
    fusion: Fusion | None

    def joined(self, parts: Sequence[np.ndarray], heads: int) -> np.ndarray:
        """Returns PyTorch's array for those of our `parts`."""
        if self.fusion is None:
            return parts[0]
        if self.fusion == "head triples":
            split = [part.reshape(heads, -1, *part.shape[1:]) for part in parts]
            return np.concatenate(split, axis=1).reshape(-1, *parts[0].shape[1:])
        rows = np.concatenate(parts)
        return rows.T if self.fusion == "columns" else rows

    def split(self, value: np.ndarray, sizes: Sequence[int], heads: int) -> list[np.ndarray]:
        """The inverse of `joined`, for parts of `sizes` rows."""
        if self.fusion is None:
            return [value]
        if self.fusion == "head triples":
            triples = value.reshape(heads, len(sizes), -1, *value.shape[1:])
            return [triples[:, number].reshape(-1, *value.shape[1:]) for number in range(len(sizes))]
        value = value.T if self.fusion == "columns" else value
        return np.split(value, np.cumsum(sizes)[:-1])


def stored_weights(family: Family, architecture: Architecture) -> Iterator[Stored]:
    """Yields the weights of PyTorch's class for a network, without copies."""
    specs = weight_specs(architecture)
    for theirs, ours in _modules(family, architecture):
        fused = ours if isinstance(ours, Fused) else Fused((ours,))
        exact = theirs.endswith((".weight", ".bias"))
        for suffix in ("",) if exact else (".weight", ".bias"):
            parts = tuple(module + suffix for module in fused.modules)
            if not all(part in specs for part in parts):
                continue
            fusion = fused.fusion if isinstance(ours, Fused) else None
            # One {} for each stacked axis.
            for index in np.ndindex(specs[parts[0]].shape[: theirs.count("{}")]):
                kind = architecture.kinds[index[0]] if index else None
                if kind and parts[0].startswith(f"{STACKED}attention_norm.") and not kind.norm_attention:
                    continue
                yield Stored(theirs.format(*index) + suffix, parts, index, fusion)


def _modules(family: Family, architecture: Architecture) -> Iterator[tuple[str, str | Fused]]:
    """Yields PyTorch's modules, and ours that a network may have in their place."""
    for theirs, ours in family.modules.items():
        if not (architecture.tied and theirs in family.copies):
            yield from ((theirs, each) for each in (ours if isinstance(ours, tuple) else (ours,)))


def stored_shapes(family: Family, architecture: Architecture) -> dict[str, tuple[int, ...]]:
    """Returns PyTorch's name → shape, in the order of `to_pytorch`, without copies."""
    specs = weight_specs(architecture)
    shapes = {}
    for stored in stored_weights(family, architecture):
        parts = [specs[part].shape[len(stored.index) :] for part in stored.parts]
        shape = (sum(part[0] for part in parts), *parts[0][1:])
        shapes[stored.name] = shape[::-1] if stored.fusion == "columns" else shape
    return shapes


def to_pytorch(
    family: Family, architecture: Architecture, weights: Mapping[str, np.ndarray], vocabulary: int
) -> Iterator[tuple[str, np.ndarray]]:
    """Yields PyTorch's names and float32 arrays, one at a time. A tied matrix is omitted, because PyTorch ties it.

    Args:
        family: The model's.
        architecture: The network's.
        weights: Ours by name.
        vocabulary: Ids to keep, the first ones: those from this on pad the vocabulary.
    """
    padded = architecture.vocabulary
    for stored in stored_weights(family, architecture):
        parts = [weights[part][stored.index] if stored.index else weights[part] for part in stored.parts]
        value = stored.joined(parts, architecture.attention.heads)
        if (
            not stored.index
            and padded != vocabulary
            and value.shape[0] == padded
            and _has_ids(stored.parts[0])
        ):
            value = value[:vocabulary]
        yield stored.name, np.ascontiguousarray(value, np.float32)


def _has_ids(name: str) -> bool:
    """Whether a weight has a row or an element for each id."""
    return name in ("embeddings.tokens.weight", "head.weight", "head.bias")


def from_pytorch(
    family: Family, architecture: Architecture, read: Callable[[str], np.ndarray], name: str
) -> np.ndarray:
    """Returns our weight `name`, float32.

    Args:
        family: The model's.
        architecture: The network's, with the vocabulary of the weights.
        read: Returns the array of one of PyTorch's names; raises KeyError if there is none.
        name: Ours.
    """
    specs = weight_specs(architecture)
    shape = specs[name].shape
    value = np.zeros(shape, np.float32) if name.startswith(STACKED) else None
    if value is not None and specs[name].std is None:
        value[:] = specs[name].mean  # of a layer without this weight
    for stored in stored_weights(family, architecture):
        if name not in stored.parts:
            continue
        sizes = [specs[part].shape[len(stored.index)] for part in stored.parts]
        parts = stored.split(np.asarray(read(stored.name), np.float32), sizes, architecture.attention.heads)
        part = parts[stored.parts.index(name)]
        if value is None:
            return part
        value[stored.index] = part
    if value is None:
        raise KeyError(name)
    return value
