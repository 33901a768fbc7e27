"""Computes tokens one after the other, with a cache of the keys and values of those before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import tensorflow as tf

from tpu_trainer.network.architecture import Architecture
from tpu_trainer.network.attention import ProbabilitiesDropout
from tpu_trainer.network.layer import Layer, Shared, layer_scalars
from tpu_trainer.network.norms import normalize
from tpu_trainer.network.stack import Kept, run_layers_keeping
from tpu_trainer.network.transformer import Inputs, embed, rotations, stacks

Weights = Mapping[str, tf.Tensor]
_UNSEEN = -1e9


class Cache(NamedTuple):
    """Keys and values of all layers, for up to M tokens of B rows."""

    keys: tf.Tensor
    """float32[N, B, M, K, D], rotated."""
    values: tf.Tensor
    """As `keys`."""

    @classmethod
    def empty(cls, architecture: Architecture, rows: int, length: int) -> Cache:
        """Returns a cache for `rows` of up to `length` tokens."""
        attention = architecture.attention
        zeros = tf.zeros([architecture.layers, rows, length, attention.key_heads, attention.head_size])
        return cls(zeros, zeros)


@dataclass(frozen=True, kw_only=True)
class _CachingLayer(Layer):
    """A layer whose tokens see those of the cache, too. It keeps their keys and values."""

    start: tf.Tensor
    """int32[B], the number of cached tokens of each row."""

    def _plain(
        self,
        query: tf.Tensor,
        key: tf.Tensor,
        value: tf.Tensor,
        scalars: Weights,
        kept: Kept,
        dropout: ProbabilitiesDropout,
    ) -> tf.Tensor:
        attention, kinds = self.architecture.attention, self.architecture.kinds
        rows, length, heads, size = query.shape
        keys = tf.concat([scalars["cached_keys"], kept("keys", key)], axis=1)
        values = tf.concat([scalars["cached_values"], kept("values", value)], axis=1)
        grouped = tf.reshape(query, [rows, length, attention.key_heads, heads // attention.key_heads, size])
        scores = tf.einsum("blkgd,bmkd->bkglm", grouped, keys)
        scores *= attention.scale * scalars.get("scale", kinds[0].scale)
        if attention.soft_cap is not None:
            scores = attention.soft_cap * tf.tanh(scores / attention.soft_cap)
        visible = self._visible(length, keys.shape[1] - length, scalars.get("window", kinds[0].window))
        probabilities = tf.nn.softmax(tf.where(visible[:, None, None], scores, _UNSEEN))
        return tf.reshape(tf.einsum("bkglm,bmkd->blkgd", probabilities, values), query.shape)

    def _visible(self, length: int, cached: int, window: tf.Tensor | int | None) -> tf.Tensor:
        """Returns bool[B, L, M + L], whether each of L tokens sees each of M cached ones and of their own."""
        start, own = self.start[:, None], tf.range(length)
        slots = tf.broadcast_to(tf.range(cached), [self.start.shape[0], cached])
        places = tf.concat([slots, start + own], axis=1)
        is_filled = tf.concat([slots < start, tf.ones([self.start.shape[0], length], tf.bool)], axis=1)
        distance = (start + own)[:, :, None] - places[:, None, :]
        visible = is_filled[:, None, :] & (distance >= 0)
        return visible if window is None else visible & (distance < window)


def decode(
    architecture: Architecture, weights: Weights, input_ids: tf.Tensor, cache: Cache, *, start: tf.Tensor
) -> tuple[tf.Tensor, Cache]:
    """Returns the last hidden states of further tokens, float32[B, T, H], and the cache with them.

    A later call with a smaller `start` replaces the tokens from there on: rows can be padded on the right.

    Args:
        architecture: The network's; causal.
        weights: By name, float32.
        input_ids: int32[B, T].
        cache: Of M ≥ start + T tokens.
        start: int32[B], the number of cached tokens of each row.
    """
    rows, length = input_ids.shape
    positions = start[:, None] + tf.range(length)
    hidden = embed(architecture, weights, Inputs(input_ids), positions, tf.float32)
    layer = _CachingLayer(
        architecture=architecture, shared=Shared(*rotations(architecture, positions), None, None), start=start
    )
    hidden, new = run_layers_keeping(
        layer,
        hidden,
        weights=stacks(weights),
        scalars=layer_scalars(architecture) | {"cached_keys": cache.keys, "cached_values": cache.values},
        keep=("keys", "values"),
    )
    if architecture.final_norm:
        hidden = normalize(hidden, architecture.norm, weights, "final_norm")
    layer_rows = tf.range(architecture.layers * rows)[:, None]
    places = tf.stack(
        [
            tf.broadcast_to(layer_rows, [architecture.layers * rows, length]),
            tf.tile(positions, [architecture.layers, 1]),
        ],
        axis=-1,
    )

    def updated(cached: tf.Tensor, added: tf.Tensor) -> tf.Tensor:
        flat = tf.reshape(cached, [architecture.layers * rows, *cached.shape[2:]])
        added = tf.reshape(added, [architecture.layers * rows, *added.shape[2:]])
        return tf.reshape(tf.tensor_scatter_nd_update(flat, places, added), cached.shape)

    return hidden, Cache(updated(cache.keys, new["keys"]), updated(cache.values, new["values"]))
