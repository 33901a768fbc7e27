"""Sampling: candidates, frequencies and determinism."""

from __future__ import annotations

import numpy as np
import pytest

from tpu_trainer.exports.sampling import Sampling

LOGITS = np.random.default_rng(0).normal(scale=2, size=(3, 40)).astype(np.float32)


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [(1.0, None, None), (0.7, None, None), (1.3, 5, None), (1.0, None, 0.8), (0.9, 12, 0.6)],
)
def test_candidates_are_the_fewest_that_reach_the_share(
    temperature: float, top_k: int | None, top_p: float | None
) -> None:
    # As transformers' warpers of temperature, top-k and top-p, one after the other.
    expected = np.exp(LOGITS / temperature)
    if top_k is not None:
        expected[expected < np.sort(expected, axis=-1)[:, -top_k, None]] = 0
    expected /= expected.sum(axis=-1, keepdims=True)
    if top_p is not None:
        before = [[row[row > share].sum() for share in row] for row in expected]
        expected[np.array(before) >= top_p] = 0
        expected /= expected.sum(axis=-1, keepdims=True)
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=0)
    for row, expected_row in zip(LOGITS, expected, strict=True):
        tokens, shares = sampling.probabilities(row)
        probabilities = np.zeros(len(row))
        probabilities[tokens] = shares
        np.testing.assert_allclose(probabilities, expected_row, rtol=1e-4, atol=1e-7)


def test_draws_follow_the_probabilities() -> None:
    sampling = Sampling(temperature=1.0, top_k=4, top_p=None, seed=7)
    tokens, shares = sampling.probabilities(LOGITS[0])
    draws = np.array([sampling.choose(LOGITS[:1], lines=[3], step=step)[0] for step in range(4000)])
    counts = np.array([(draws == token).sum() for token in tokens])
    assert counts.sum() == 4000
    assert (
        ((counts - 4000 * shares) ** 2) / (4000 * shares)
    ).sum() < 16.3  # χ² of 3 degrees of freedom, p = 0.001


def test_a_draw_depends_only_on_seed_line_and_step() -> None:
    def draws(seed: int, line: int) -> list[int]:
        sampling = Sampling(temperature=1.0, top_k=None, top_p=None, seed=seed)
        return [int(sampling.choose(LOGITS[:1], lines=[line], step=step)[0]) for step in range(60)]

    line_draws = draws(0, 2)
    assert line_draws == draws(0, 2)
    assert len({tuple(line_draws), tuple(draws(1, 2)), tuple(draws(0, 3))}) == 3
    assert len(set(line_draws)) > 5
    sampling = Sampling(temperature=1.0, top_k=None, top_p=None, seed=0)
    batch_draws = sampling.choose(np.repeat(LOGITS[:1], 4, axis=0), lines=[0, 1, 2, 3], step=9)
    assert batch_draws[2] == line_draws[9]


def test_temperature_0_chooses_the_most_probable_token() -> None:
    sampling = Sampling(temperature=0.0, top_k=None, top_p=None, seed=0)
    assert sampling.choose(LOGITS, lines=[0, 1, 2], step=0).tolist() == LOGITS.argmax(axis=1).tolist()
