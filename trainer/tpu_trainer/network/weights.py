"""The variables of a network: their names, shapes and initial values.

Names are the same in all families. One that begins with `layers.` names a stack: the first axis is the layer.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
import tensorflow as tf

from tpu_trainer.network.architecture import Architecture, Norm
from tpu_trainer.network.initial_values import InitialValues

STACKED = "layers."
"""The beginning of the names of stacks."""


class WeightSpec(NamedTuple):
    """A weight of a network."""

    shape: tuple[int, ...]
    """[N, …] for the weight of a layer, N layers."""
    std: float | None
    """Standard deviation of its initial values; None: they are `mean`."""
    mean: float = 0.0
    zero_row: int | None = None
    """A row whose initial values are 0: an embedding's of padding."""


def weight_specs(architecture: Architecture) -> dict[str, WeightSpec]:
    """Returns the weights of a network by name, in the order of their use."""
    return dict(_all_specs(architecture))


def _all_specs(a: Architecture) -> Iterator[tuple[str, WeightSpec]]:
    std = a.initial.weights
    table = std if a.initial.embeddings is None else a.initial.embeddings
    embedded = a.width if a.embedding_width is None else a.embedding_width
    yield "embeddings.tokens.weight", WeightSpec((a.vocabulary, embedded), table)
    if a.positions is not None:
        rows = a.positions.count
        yield (
            "embeddings.positions.weight",
            WeightSpec((rows, _position_width(a)), table, zero_row=a.positions.padding),
        )
    if a.token_types:
        yield "embeddings.types.weight", WeightSpec((a.token_types, embedded), table)
    yield from _norm("embeddings.norm", a.embedding_norm, embedded)
    if a.embedding_width is not None:
        yield from _linear("embeddings.projection", a.width, embedded, std, bias=a.projection_bias)
    for name, spec in _layer_specs(a):
        yield STACKED + name, spec._replace(shape=(a.layers, *spec.shape))
    if a.final_norm:
        yield from _norm("final_norm", a.norm, a.width)
    head = std if a.initial.head is None else a.initial.head
    if a.head.transform:
        yield from _linear("head.transform", a.head_width, a.width, head, bias=a.head.transform_bias)
    yield from _norm("head.norm", a.head.norm, a.head_width)
    if not a.tied:
        yield "head.weight", WeightSpec((a.vocabulary, a.head_width), head)
    if a.head.bias:
        yield "head.bias", WeightSpec((a.vocabulary,), None)


def _position_width(a: Architecture) -> int:
    # OPT adds positions after the projection, ELECTRA before it.
    return a.width if a.embedding_norm is None or a.embedding_width is None else a.embedding_width


def _layer_specs(a: Architecture) -> Iterator[tuple[str, WeightSpec]]:
    std, attention, mlp = a.initial.weights, a.attention, a.mlp
    residual = std if a.initial.residual is None else a.initial.residual
    width, key_width = attention.heads * attention.head_size, attention.key_heads * attention.head_size
    before, after = "before" in a.norm_place, a.norm_place != "before"
    if before:
        yield from _norm("attention_norm", a.norm, a.width)
    yield from _linear("attention.query", width, a.width, std, bias=attention.bias)
    yield from _linear("attention.key", key_width, a.width, std, bias=attention.bias)
    yield from _linear("attention.value", key_width, a.width, std, bias=attention.bias)
    for name, size in (("query", width), ("key", key_width)):
        normed = attention.head_size if attention.norm_heads else size
        yield from _norm(f"attention.{name}_norm", attention.norm, normed)
    yield from _linear("attention.output", a.width, width, residual, bias=attention.output_bias)
    if after:
        yield from _norm("attention_norm_after", a.norm, a.width)
    if before and not a.shared_norm:
        yield from _norm("mlp_norm", a.norm, a.width)
    if mlp.experts is not None:
        yield from _linear("mlp.router", mlp.experts, a.width, std, bias=False)
    leading = () if mlp.experts is None else (mlp.experts,)
    for name, spec in _mlp_specs(a, std, residual):
        yield name, spec._replace(shape=(*leading, *spec.shape))
    if after:
        yield from _norm("mlp_norm_after", a.norm, a.width)


def _mlp_specs(a: Architecture, std: float, residual: float) -> Iterator[tuple[str, WeightSpec]]:
    """Yields the weights of the MLP, or of one expert."""
    if a.mlp.gated:
        yield from _linear("mlp.gate", a.mlp.size, a.width, std, bias=a.mlp.bias)
    yield from _linear("mlp.up", a.mlp.size, a.width, std, bias=a.mlp.bias)
    yield from _linear("mlp.down", a.width, a.mlp.size, residual, bias=a.mlp.bias)


def _linear(
    name: str, outputs: int, inputs: int, std: float, *, bias: bool
) -> Iterator[tuple[str, WeightSpec]]:
    yield f"{name}.weight", WeightSpec((outputs, inputs), std)
    if bias:
        yield f"{name}.bias", WeightSpec((outputs,), None)


def _norm(name: str, norm: Norm | None, size: int) -> Iterator[tuple[str, WeightSpec]]:
    if norm is not None and norm.weight:
        yield f"{name}.weight", WeightSpec((size,), None, mean=1 - norm.offset)
    if norm is not None and norm.bias:
        yield f"{name}.bias", WeightSpec((size,), None)


class Network:
    """An architecture and its variables."""

    def __init__(
        self,
        architecture: Architecture,
        *,
        seed: int = 0,
        initial: InitialValues | None = None,
        part: Literal["network", "average"] = "network",
    ) -> None:
        """
        Args:
            architecture: What to compute.
            seed: Determines the initial values, each weight's by its name.
            initial: Creates the variables.
            part: The part of the state that the variables are in.
        """
        self.architecture = architecture
        initial = initial or InitialValues()
        self.weights: dict[str, tf.Variable] = {
            name: initial.variable(
                f"{part}/{name}", spec.shape, partial(_draw, name, spec, seed, architecture.initial.cutoff)
            )
            for name, spec in weight_specs(architecture).items()
        }
        """float32 variables by name."""

    @property
    def parameters(self) -> int:
        """The number of weights."""
        return sum(weight.shape.num_elements() for weight in self.weights.values())


def _draw(name: str, spec: WeightSpec, seed: int, cutoff: float | None) -> np.ndarray:
    """Returns the initial values of a weight: a function of its name and the seed, for a stack of each layer's."""
    if spec.std is None:
        return np.full(spec.shape, spec.mean, np.float32)
    if not name.startswith(STACKED):
        values = _normal(name, spec.shape, spec.std, seed, cutoff)
        if spec.zero_row is not None:
            values[spec.zero_row] = 0
        return values
    values = np.empty(spec.shape, np.float32)
    for number in range(spec.shape[0]):
        values[number] = _normal(f"{name}.{number}", spec.shape[1:], spec.std, seed, cutoff)
    return values


def _normal(name: str, shape: tuple[int, ...], std: float, seed: int, cutoff: float | None) -> np.ndarray:
    key = [seed, zlib.crc32(name.encode())]
    if cutoff is None:
        return tf.random.stateless_normal(shape, seed=key, stddev=std, alg="philox").numpy()
    # By the inverse of the distribution function.
    most = math.erf(cutoff / math.sqrt(2))
    shares = tf.random.stateless_uniform(shape, seed=key, minval=-most, maxval=most, alg="philox")
    return (std * math.sqrt(2) * tf.math.erfinv(shares)).numpy()
