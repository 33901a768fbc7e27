"""What a family of models is: a translation of a configuration and of names of weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tpu_trainer.config import ObjectiveName
from tpu_trainer.network.architecture import Activation, Architecture
from tpu_trainer.support.errors import UsageError

_ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_fast",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "relu2": "relu2",
    "silu": "silu",
    "swish": "silu",
    "sigmoid": "sigmoid",
    "tanh": "tanh",
    "mish": "mish",
}


class ConfigValues:
    """The values of a configuration of transformers 5, which notes those that are read."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return self._values[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Returns a value; `default` if there is none or it is null."""
        self.read.add(name)
        value = self._values.get(name)
        return default if value is None else value

    def activation(self, name: str) -> Activation:
        """Returns the activation that a value names; raises UsageError for others."""
        value = self[name]
        if value not in _ACTIVATIONS:
            raise self.error(name, f"must be one of {', '.join(sorted(_ACTIVATIONS))}")
        return _ACTIVATIONS[value]

    def positive(self, name: str) -> Any:
        """Returns a value, a positive number or null; raises UsageError for others."""
        value = self[name]
        if value is not None and not value > 0:
            raise self.error(name, "must be greater than 0")
        return value

    def require(self, name: str, *allowed: Any) -> None:
        """Raises UsageError if a value is none of the `allowed`: the trainer does not compute what others mean."""
        if self.get(name) not in allowed:
            raise self.error(name, f"not supported; must be {' or '.join(map(repr, allowed))}")

    def error(self, name: str, reason: str) -> UsageError:
        """Returns the error for a value."""
        return UsageError(f"--model.config.{name} is {self._values.get(name)!r}: {reason}")


Fusion = Literal["rows", "columns", "head triples"]
"""How PyTorch's class stores several matrices as one. rows: one below the other; columns: transposed, side by side;
head triples: for each head its rows of queries, keys and values."""


@dataclass(frozen=True)
class Fused:
    """A module of PyTorch's class that several of ours make up, or one whose matrix is transposed."""

    modules: tuple[str, ...]
    """Ours, in the order of their rows."""
    fusion: Fusion = "rows"


@dataclass(frozen=True, kw_only=True)
class Family:
    """A model type."""

    objective: ObjectiveName
    class_name: str
    """PyTorch's class, which loads what is exported."""
    architecture: Callable[[ConfigValues], Architecture]
    """Translates a configuration, whose `vocab_size` is that of the network."""
    modules: Mapping[str, str | Fused | tuple[str, ...]]
    """Name of PyTorch's module, with {} for the numbers of the layer and of the expert → ours, or all that may be in
    its place, of which a network has one. Names that end in .weight or .bias name only that weight."""
    copies: tuple[str, ...] = ()
    """PyTorch's modules whose weights are copies of others in a tied model."""
    without_effect: frozenset[str] = frozenset()
    """Values of a configuration that do not change this network."""
    ignored_weights: tuple[str, ...] = ()
    """Regular expressions: weights of PyTorch's checkpoints for other heads, and buffers."""
