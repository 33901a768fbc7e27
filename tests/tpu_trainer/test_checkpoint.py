"""Checkpoints are complete or absent."""

from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow as tf

from tpu_trainer.checkpoint import Checkpoints
from tpu_trainer.errors import UsageError


def test_what_is_saved_comes_back_and_old_ones_go(tmp_path: Path) -> None:
    value = tf.Variable([0.0, 0.0])
    checkpoints = Checkpoints(str(tmp_path / "checkpoints"), keep=2)
    for step in (5, 10, 15):
        value.assign([step, -step])
        checkpoints.save(step, metadata={"data": f"d{step}"}, value=value)
    assert checkpoints.steps() == [10, 15]
    assert checkpoints.latest() == 15
    assert checkpoints.metadata(10) == {"step": 10, "data": "d10"}
    checkpoints.restore(10, value=value)
    assert value.numpy().tolist() == [10, -10]


def test_an_unfinished_checkpoint_is_not_read_and_is_removed(tmp_path: Path) -> None:
    value = tf.Variable(1.0)
    checkpoints = Checkpoints(str(tmp_path), keep=2)
    checkpoints.save(5, metadata={}, value=value)
    checkpoints.save(10, metadata={}, value=value)
    (tmp_path / "step-00000010" / "complete.json").unlink()
    assert checkpoints.latest() == 5
    checkpoints.save(12, metadata={}, value=value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000005", "step-00000012"]


def test_a_shape_that_changed_is_an_error(tmp_path: Path) -> None:
    checkpoints = Checkpoints(str(tmp_path))
    checkpoints.save(1, metadata={}, value=tf.Variable([1.0, 2.0]))
    with pytest.raises(ValueError, match="shape"):
        checkpoints.restore(1, value=tf.Variable([1.0, 2.0, 3.0]))


def test_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no complete checkpoint"):
        Checkpoints(str(tmp_path / "checkpoints")).latest()
