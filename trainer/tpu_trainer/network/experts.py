"""A mixture of experts: MLPs of which a router chooses some for each token (Shazeer et al., 2017, arXiv 1701.06538).

All shapes are static, and no token is dropped. Each expert has places for `_SPARE` times its share of the choices. The
choices of all tokens are sorted by expert, and each expert's first ones take its places. Those that remain take them in
further passes, whose number is that of the longest queue: if the router divides the tokens evenly, there is none.

Example: 4 tokens with 1 choice each, 2 experts with 2 places. The choices 0, 0, 1, 0 have the places 0, 1, 0, 2. The
first pass computes tokens 0 and 1 with expert 0 and token 2 with expert 1, the second one token 3 with expert 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tpu_trainer.config.mesh import MODEL
from tpu_trainer.network.architecture import Mlp
from tpu_trainer.network.division import ONE_DEVICE, Division
from tpu_trainer.network.norms import activate
from tpu_trainer.network.stack import Kept

_SPARE = 1.25


class _Queues(NamedTuple):
    """The choices of G groups of tokens, A in each: choice a is one of token a ÷ k, k for each token."""

    experts: tf.Tensor
    """int32[G, A], the chosen experts."""
    places: tf.Tensor
    """int32[G, A], each choice's place in the queue of its expert."""
    order: tf.Tensor
    """int32[G, A], the choices by expert and place."""
    starts: tf.Tensor
    """int32[G, E], where the queues of the experts begin in `order`."""
    lengths: tf.Tensor
    """int32[G, E]."""
    capacity: int
    """Places of an expert in one pass, C."""
    chosen: int
    """Choices of each token, k."""


class _Route(NamedTuple):
    """The choices that one pass computes."""

    choices: tf.Tensor
    """int32[G, E · C], the choice in each place."""
    taken: tf.Tensor
    """bool[G, E · C], whether a place has one."""
    slots: tf.Tensor
    """int32[G, A], the place of each choice."""
    computed: tf.Tensor
    """bool[G, A], whether this pass computes it."""


def mixture(
    x: tf.Tensor,
    shape: Mlp,
    weights: Mapping[str, tf.Tensor],
    *,
    kept: Kept,
    division: Division = ONE_DEVICE,
    real: tf.Tensor | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the experts' output, [B, L, H], and what `balance_loss` needs, float32[2, E].

    Args:
        x: [B, L, H].
        shape: The experts'.
        weights: mlp.router.weight, float32[E, H], and those of the MLP with a first axis of E experts.
        kept: Keeps the choices and the results of the first matrices.
        division: How devices divide the tokens, whose groups share no places, and the experts.
        real: bool[B, L], which tokens are no padding; None: all.
    """
    rows, length, width = x.shape
    tokens = division.by_group(x)
    logits = tf.einsum("gth,eh->gte", tf.cast(tokens, tf.float32), weights["mlp.router.weight"])
    probabilities = tf.nn.softmax(logits)
    _, chosen = tf.math.top_k(tf.stop_gradient(probabilities), shape.chosen_experts)
    # If rounding in the backward pass changed a choice, the other values that are kept would not belong to it.
    chosen = kept("experts", chosen)
    is_chosen = chosen[..., None] == tf.range(shape.experts)
    shares = tf.reduce_sum(tf.where(is_chosen, probabilities[:, :, None], 0.0), axis=-1)
    if shape.normalize_choice:
        shares /= tf.reduce_sum(shares, axis=-1, keepdims=True)
    results = _compute(tokens, _queues(chosen, is_chosen), shape, weights, kept, division)
    results = tf.reshape(results, [*chosen.shape, width])
    output = tf.reduce_sum(results * tf.cast(shares, x.dtype)[..., None], axis=2)
    counted = tf.ones([rows, length]) if real is None else tf.cast(real, tf.float32)
    counted = division.by_group(counted)[..., None] / tf.reduce_sum(counted)
    loads = tf.reduce_sum(tf.where(is_chosen, counted[..., None], 0.0), axis=[0, 1, 2])
    means = tf.reduce_sum(probabilities * counted, axis=[0, 1])
    return division.by_row(output, length), tf.stack([loads, means])


def balance_loss(layer_means: tf.Tensor) -> tf.Tensor:
    """Returns E · Σ load · probability over all experts, as transformers computes it for all layers together.

    It is k if all experts get as many tokens (Fedus et al., "Switch Transformers", 2021, arXiv 2101.03961, 2.2).

    Args:
        layer_means: float32[2, E], the means over the layers of what `mixture` returns: for each expert the choices and
            the probability per token.
    """
    return layer_means.shape[1] * tf.reduce_sum(layer_means[0] * layer_means[1])


def _queues(chosen: tf.Tensor, is_chosen: tf.Tensor) -> _Queues:
    """Returns the queues for `chosen`, int32[G, T, k], of which `is_chosen`, bool[G, T, k, E], are the indicators."""
    groups, tokens, count = chosen.shape
    choices, experts = tokens * count, is_chosen.shape[-1]
    flat = tf.reshape(chosen, [groups, choices])
    lengths = tf.reduce_sum(tf.cast(is_chosen, tf.int32), axis=[1, 2])
    starts = tf.cumsum(lengths, axis=1, exclusive=True)
    order = tf.argsort(flat * choices + tf.range(choices))
    start = tf.reduce_sum(
        tf.where(tf.reshape(is_chosen, [groups, choices, experts]), starts[:, None], 0), axis=-1
    )
    share = int(_SPARE * choices) // experts + 1
    capacity = min(tokens, -(-share // 8) * 8)
    return _Queues(flat, tf.argsort(order) - start, order, starts, lengths, capacity, count)


def _compute(
    tokens: tf.Tensor,
    queues: _Queues,
    shape: Mlp,
    weights: Mapping[str, tf.Tensor],
    kept: Kept,
    division: Division,
) -> tf.Tensor:
    """Returns the results of all choices, [G, A, H], for `tokens`, [G, T, H]."""
    names = [f"mlp.{name}.weight" for name in (("gate", "up", "down") if shape.gated else ("up", "down"))]
    matrices = [
        weights[name] for name in names
    ]  # each pass casts them, so that gradients are summed in float32

    def run(
        first: tf.Tensor | int, tokens: tf.Tensor, matrices: Sequence[tf.Tensor], kept: Callable[..., Any]
    ) -> tf.Tensor:
        route = _route(queues, first)
        groups, _, width = tokens.shape

        def between(name: str, places: tf.Tensor, matrix: tf.Tensor) -> tf.Tensor:
            return kept(name, division.by_expert(tf.einsum("gech,eih->geci", places, matrix), (MODEL,)))

        places = division.by_device(_dispatch(tokens, route, queues.chosen))
        places = tf.reshape(places, [groups, -1, queues.capacity, width])
        places = division.by_expert(places)
        *gates, up, down = (tf.cast(matrix, tokens.dtype) for matrix in matrices)
        inner = between("up", places, up)
        if gates:
            inner = activate(between("gate", places, gates[0]), shape.activation) * inner
        else:
            inner = activate(inner, shape.activation)
        results = division.by_expert(tf.einsum("geci,ehi->gech", inner, down))
        results = division.by_device(tf.reshape(results, [groups, -1, width]))
        return division.by_device(_collect(results, route))

    tokens = division.by_device(tokens)
    results = run(0, tokens, matrices, kept)
    if queues.capacity == tokens.shape[1]:
        return results  # no queue can be longer
    return results + _further_passes(
        lambda first, tokens, *matrices: run(first, tokens, matrices, lambda _, value: value),
        (tokens, *matrices),
        step=queues.capacity,
        end=tf.reduce_max(queues.lengths),
    )


def _further_passes(
    run: Callable[..., tf.Tensor], inputs: Sequence[tf.Tensor], *, step: int, end: tf.Tensor
) -> tf.Tensor:
    """Returns the sum of run(first, *inputs) for first = step, 2 · step, … below `end`.

    The backward pass runs them again: what they need is not kept, because their number is known only when they run.
    """

    def more(first: tf.Tensor, *_: Any) -> tf.Tensor:
        return first < end

    @tf.custom_gradient
    def total(*inputs: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], list[tf.Tensor]]]:
        zeros = tf.zeros_like(run(0, *inputs))
        _, result = tf.while_loop(
            more,
            lambda first, result: (first + step, result + run(first, *inputs)),
            (tf.constant(step), zeros),
            parallel_iterations=1,
        )

        def gradient(d_result: tf.Tensor) -> list[tf.Tensor]:
            def add(first: tf.Tensor, sums: list[tf.Tensor]) -> tuple[tf.Tensor, list[tf.Tensor]]:
                with tf.GradientTape(watch_accessed_variables=False) as tape:
                    tape.watch(inputs)
                    part = run(first, *inputs)
                gradients = tape.gradient(part, inputs, d_result)
                return first + step, [a + b for a, b in zip(sums, gradients, strict=True)]

            return tf.while_loop(
                more,
                add,
                (tf.constant(step), [tf.zeros_like(value) for value in inputs]),
                parallel_iterations=1,
            )[1]

        return result, gradient

    return total(*inputs)


def _route(queues: _Queues, first: tf.Tensor | int) -> _Route:
    """Returns the choices whose places begin at `first`, as many as there are places."""
    groups, choices = queues.experts.shape
    capacity = queues.capacity
    numbers = first + tf.range(capacity)
    taken = numbers < queues.lengths[..., None]
    index = tf.minimum(queues.starts[..., None] + numbers, choices - 1)
    in_places = tf.gather(queues.order, tf.reshape(index, [groups, -1]), batch_dims=1)
    places = queues.places - first
    computed = (places >= 0) & (places < capacity)
    slots = queues.experts * capacity + tf.clip_by_value(places, 0, capacity - 1)
    return _Route(in_places, tf.reshape(taken, [groups, -1]), slots, computed)


def _dispatch(tokens: tf.Tensor, route: _Route, chosen: int) -> tf.Tensor:
    """Returns the token in each place, [G, E · C, H], for `tokens`, [G, T, H]. Its gradient gathers, too."""

    @tf.custom_gradient
    def dispatch(tokens: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        def gradient(d_places: tf.Tensor) -> tf.Tensor:
            d_choices = _rows(d_places, route.slots, route.computed)
            groups, count, width = tokens.shape
            return tf.reduce_sum(tf.reshape(d_choices, [groups, count, chosen, width]), axis=2)

        return _rows(tokens, route.choices // chosen, route.taken), gradient

    return dispatch(tokens)


def _collect(places: tf.Tensor, route: _Route) -> tf.Tensor:
    """Returns the result of each choice, [G, A, H], for those in `places`, [G, E · C, H]; 0 if it has none."""

    @tf.custom_gradient
    def collect(places: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        return _rows(places, route.slots, route.computed), lambda gradient: _rows(
            gradient, route.choices, route.taken
        )

    return collect(places)


def _rows(x: tf.Tensor, index: tf.Tensor, valid: tf.Tensor) -> tf.Tensor:
    """Returns the rows of `x`, [G, R, H], that `index`, int32[G, I], names, and 0 for those that are not `valid`."""
    return tf.where(valid[..., None], tf.gather(x, index, batch_dims=1), tf.zeros([], x.dtype))
