"""How devices divide arrays: groups of tokens, the order of columns, and what they cannot divide."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from tests.tpu_trainer.step.test_task import task_of
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.network.architecture import Architecture, Dropout
from tpu_trainer.network.division import Division, balanced_order, in_columns, in_order
from tpu_trainer.support.errors import UsageError


@pytest.fixture
def architecture(vocabulary: Vocabulary) -> Architecture:
    """A bidirectional architecture with 2 heads."""
    return task_of(vocabulary).objective.model.network.architecture


def test_a_group_has_the_tokens_of_its_rows_and_columns() -> None:
    division = Division(data=2, expert=2, sequence=2, model=3)
    tokens = tf.constant([[10 * row + column for column in range(6)] for row in range(4)])
    groups = division.by_group(tokens)
    # In the order of (data, sequence, expert).
    assert groups.numpy().tolist() == [
        *([0, 1, 2], [10, 11, 12], [3, 4, 5], [13, 14, 15]),
        *([20, 21, 22], [30, 31, 32], [23, 24, 25], [33, 34, 35]),
    ]
    np.testing.assert_array_equal(division.by_row(groups, 6), tokens)


def test_balanced_columns_give_devices_equal_shares_of_causal_attention(architecture: Architecture) -> None:
    order = Division(sequence=3).order(replace(architecture, causal=True, dropout=Dropout()), 12)
    assert order.tolist() == [0, 1, 10, 11, 2, 3, 8, 9, 4, 5, 6, 7]
    keys_seen = (order + 1).reshape(3, 4).sum(axis=1)
    assert keys_seen.tolist() == [26, 26, 26]
    ordered = in_order(tf.constant(order[None, :, None]), order, 6)
    np.testing.assert_array_equal(ordered[0, :, 0], np.arange(12))
    np.testing.assert_array_equal(in_columns(ordered, order, 6, axis=1)[0, :, 0], order)


def test_columns_stay_in_order_where_that_is_balanced_or_dropout_counts_them(
    architecture: Architecture,
) -> None:
    causal = replace(architecture, causal=True, dropout=Dropout())
    assert Division(sequence=2).order(replace(causal, causal=False), 8) is None
    assert Division(sequence=2).order(replace(causal, dropout=Dropout(mlp=0.1)), 8) is None
    assert Division(sequence=2).order(causal, 6) is None  # no four equal chunks
    assert Division(data=8).order(causal, 8) is None
    np.testing.assert_array_equal(Division(sequence=2).order(causal, 8), balanced_order(8, 2))


@pytest.mark.parametrize(
    ("division", "message"),
    [
        (
            Division(model=4),
            r"--mesh.model is 4: it must divide the number of the model's attention heads, 2",
        ),
        (Division(expert=2), r"--mesh.expert is 2: the model has no experts; remove the option"),
        (Division(sequence=3), r"--mesh.sequence is 3: it must divide the tokens of a row, 16"),
    ],
)
def test_what_the_axes_do_not_divide_is_named(
    architecture: Architecture, division: Division, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        division.check(architecture, 16)


def test_key_heads_and_experts_must_be_divisible(architecture: Architecture) -> None:
    attention = replace(architecture.attention, heads=4, key_heads=1)
    with pytest.raises(UsageError, match="it must divide the number of the model's key heads, 1"):
        Division(model=4).check(replace(architecture, attention=attention), 16)
    experts = replace(architecture, mlp=replace(architecture.mlp, experts=6))
    with pytest.raises(UsageError, match=r"--mesh.expert is 4: it must divide the number of .* experts, 6"):
        Division(expert=4).check(experts, 16)
