"""The TensorFlow executor: several steps per call, and copying the state."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.tpu_trainer.step.test_task import config_of, task_of
from tests.tpu_trainer.trained import joined
from tpu_trainer.data.batches import RowStream
from tpu_trainer.data.mixture import open_mixture
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.devices.tensorflow.executor import TensorFlowExecutor


@pytest.fixture(scope="module")
def rows(dataset: Path) -> RowStream:
    data = open_mixture({str(dataset / "train"): None})
    return RowStream(data=data, batch_size=12, seed=4, window_shards=2)


def executor_of(vocabulary: Vocabulary, **options: Any) -> TensorFlowExecutor:
    config = config_of()
    config = replace(config, optimizer=replace(config.optimizer, ema=0.9))
    return TensorFlowExecutor(task_of(vocabulary, config), tf.distribute.get_strategy(), **options)


def assert_same(actual: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(actual[name], value, err_msg=name)


def test_steps_in_one_call_and_from_a_state_in_the_middle_end_with_the_same_bits(
    vocabulary: Vocabulary, rows: RowStream
) -> None:
    one_by_one = executor_of(vocabulary)
    start = joined(one_by_one.state())
    batches = iter(one_by_one.distribute(rows.batches(0)))
    for step in range(2):
        one_by_one.train(batches, range(step, step + 1))
    middle_state = joined(one_by_one.state())
    assert {name: value.shape for name, value in middle_state.items()} == one_by_one.state_shapes()
    for step in range(2, 5):
        output = one_by_one.train(batches, range(step, step + 1))
    assert float(output.input_wait) >= 0

    # This uses the clock of deterministic runs.
    three_by_three = executor_of(vocabulary, steps_per_call=3, deterministic=True)
    assert_same(joined(three_by_three.state()), start)
    three_by_three.load_state(middle_state.items())
    assert_same(joined(three_by_three.state()), middle_state)
    three_by_three.train(iter(three_by_three.distribute(rows.batches(2))), range(2, 5))
    assert_same(joined(three_by_three.state()), joined(one_by_one.state()))
    assert three_by_three.sums() == one_by_one.sums()
    assert three_by_three.sums().steps == 5
    three_by_three.clear_sums()
    assert three_by_three.sums().steps == 0
    assert three_by_three.non_finite() is None
