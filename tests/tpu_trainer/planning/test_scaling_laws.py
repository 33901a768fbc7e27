"""Scaling laws: published values, and optima found by search."""

from __future__ import annotations

import numpy as np
import pytest

from tpu_trainer.planning.scaling_laws import LAWS, ScalingLaw, effective_tokens, over_laws

BESIROGLU, HOFFMANN, MUENNIGHOFF = LAWS


def test_the_laws_give_published_values() -> None:
    # Chinchilla, of 70 billion parameters on 1.4 trillion tokens, by the rounded constants that its paper prints.
    rounded = 1.69 + 406.4 / 70e9**0.34 + 410.7 / 1.4e12**0.28
    assert HOFFMANN.loss(70e9, 1.4e12) == pytest.approx(rounded, abs=0.02)
    # "20 tokens per parameter" is what the replication and the law of repeated data agree on at that scale.
    for law in (BESIROGLU, MUENNIGHOFF):
        size = law.best_run(6 * 70e9 * 1.4e12, 1e15)
        assert 15 < 70e9 * 1.4e12 / size**2 < 26


@pytest.mark.parametrize("law", LAWS, ids=[law.source.split(" ")[0] for law in LAWS])
def test_the_best_size_has_the_lowest_loss(law: ScalingLaw) -> None:
    flops = 1e21
    sizes = np.geomspace(1e7, 1e12, 20_001)
    losses = law.loss(sizes, flops / 6 / sizes)
    best = sizes[np.argmin(losses)]
    assert law.best_size_for(flops / 6 / best) == pytest.approx(best, rel=5e-3)
    # With few different tokens, they are repeated, and a larger model reads them less often.
    assert law.best_run(flops, 1e8) != pytest.approx(law.best_run(flops, 1e13), rel=0.05)


def test_parameters_beyond_the_best_size_count_less() -> None:
    law, unique = MUENNIGHOFF, 1e9
    enough = law.best_size_for(unique)
    assert law.run_loss(enough, unique, unique) == law.loss(enough, unique)
    assert (
        law.loss(100 * enough, unique) < law.run_loss(100 * enough, unique, unique) < law.loss(enough, unique)
    )
    most = enough * (1 + 5.309743)
    assert law.run_loss(1e6 * enough, unique, unique) == pytest.approx(law.loss(most, unique))


def test_repeated_tokens_count_less_and_at_most_as_sixteen_epochs() -> None:
    assert effective_tokens(100.0, 60.0) == 60 and effective_tokens(100.0, 100.0) == 100
    four = effective_tokens(100.0, 400.0)
    assert 360 < four < 400  # "up to 4 epochs … negligible changes to loss"
    assert effective_tokens(100.0, 1e9) == pytest.approx(100 * (1 + 15.387756))
    values = [effective_tokens(100.0, read) for read in np.linspace(1, 5000, 200)]
    assert values == sorted(values)


def test_a_range_spans_all_laws() -> None:
    loss = over_laws(lambda law: law.loss(1e9, 2e10))
    assert loss.low <= loss.value <= loss.high and loss.value == BESIROGLU.loss(1e9, 2e10)
