"""Checkpoints are complete or absent, and are written while training changes the state."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
import tf_keras as keras

from tpu_trainer.errors import UsageError
from tpu_trainer.runs.checkpoint import BackgroundSaver, Checkpoints, snapshot


def save(checkpoints: Checkpoints, step: int, state: dict[str, Any], **metadata: Any) -> None:
    checkpoints.write(step, snapshot(state), metadata=metadata)


@pytest.fixture(params=["local", "url"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    # file:// is TensorFlow's name for the local disk: the same code path as gs://.
    return f"{tmp_path}/checkpoints" if request.param == "local" else f"file://{tmp_path}/checkpoints"


def test_checkpoints_restore_the_state_and_old_ones_are_removed(folder: str) -> None:
    value = tf.Variable([0.0, 0.0])
    checkpoints = Checkpoints(folder, keep=2)
    for step in (5, 10, 15):
        value.assign([step, -step])
        save(checkpoints, step, {"value": value}, data=f"d{step}")
    assert checkpoints.steps() == [10, 15]
    assert checkpoints.latest() == 15
    assert checkpoints.metadata(10) == {"step": 10, "data": "d10"}
    checkpoints.restore(10, value=value)
    assert value.numpy().tolist() == [10, -10]


def test_the_best_checkpoint_is_also_kept(folder: str) -> None:
    state = {"value": tf.Variable(1.0)}
    checkpoints = Checkpoints(folder, keep=2)
    assert checkpoints.best() is None
    save(checkpoints, 1, state)
    save(checkpoints, 2, state, validation_loss=3.0)
    save(checkpoints, 3, state, validation_loss=4.0)
    for step in (4, 5):
        save(checkpoints, step, state)
    assert checkpoints.steps() == [2, 4, 5]
    assert checkpoints.best() == 2
    checkpoints.record(5, validation_loss=2.5)
    assert checkpoints.best() == 5
    assert checkpoints.steps() == [4, 5]
    checkpoints.record(99, validation_loss=0.0)
    assert checkpoints.best() == 5


def test_an_unfinished_checkpoint_is_not_read_and_is_removed(tmp_path: Path) -> None:
    state = {"value": tf.Variable(1.0)}
    checkpoints = Checkpoints(str(tmp_path), keep=2)
    save(checkpoints, 5, state)
    save(checkpoints, 10, state)
    (tmp_path / "step-00000010" / "complete.json").unlink()
    assert checkpoints.latest() == 5
    save(checkpoints, 12, state)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000005", "step-00000012"]


def test_names_do_not_depend_on_other_models_in_the_process(tmp_path: Path) -> None:
    def state() -> dict[str, Any]:
        model = keras.Sequential([keras.layers.Dense(2, name="dense")])
        model.build([None, 3])
        optimizer = keras.optimizers.AdamW()
        optimizer.build(model.trainable_variables)
        return {"network": model, "optimizer": optimizer}

    first, second = state(), state()
    assert first["network"].name != second["network"].name
    for part in first.values():
        for variable in part.variables:
            variable.assign(tf.cast(tf.random.uniform(variable.shape, maxval=9), variable.dtype))
    checkpoints = Checkpoints(str(tmp_path))
    save(checkpoints, 1, first)
    checkpoints.restore(1, **second)
    written, read = snapshot(first), snapshot(second)
    assert written.keys() == read.keys()
    assert "optimizer/m/dense/kernel" in written
    assert all((written[name] == read[name]).all() for name in written)


def test_a_checkpoint_of_another_model_or_a_damaged_one_is_an_error(tmp_path: Path) -> None:
    checkpoints = Checkpoints(str(tmp_path))
    save(checkpoints, 1, {"value": tf.Variable([1.0, 2.0])})
    for other, message in (
        ({"value": tf.Variable([1.0, 2.0, 3.0])}, r"shape \[2\] there and \[3\] here"),
        ({"other": tf.Variable(1.0)}, r"'other/Variable' has shape None there"),
    ):
        with pytest.raises(UsageError, match=message):
            checkpoints.restore(1, **other)
    path = tmp_path / "step-00000001" / "state.data-00000-of-00001"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(UsageError, match=r"state: cannot be read .*Checksum.* remove .*step-00000001"):
        checkpoints.restore(1, value=tf.Variable([1.0, 2.0]))


@pytest.mark.parametrize("content", [b"", b'{"step": 1', b"[]", b'{"step": 2}', b"\xff\xfe"])
def test_damaged_metadata_is_an_error_that_names_the_remedy(tmp_path: Path, content: bytes) -> None:
    checkpoints = Checkpoints(str(tmp_path), keep=2)
    save(checkpoints, 1, {"value": tf.Variable(1.0)})
    (tmp_path / "step-00000001" / "complete.json").write_bytes(content)
    with pytest.raises(UsageError, match=r"complete.json: cannot be read .* remove .*step-00000001"):
        checkpoints.best()


def test_a_run_without_checkpoints_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no complete checkpoint"):
        Checkpoints(str(tmp_path / "checkpoints")).latest()


class SlowCheckpoints(Checkpoints):
    """Writes when the test allows it."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder, keep=9)
        self.go = threading.Event()
        self.in_flight = self.most_in_flight = 0

    def write(self, *args: Any, **kwargs: Any) -> None:
        self.in_flight += 1
        self.most_in_flight = max(self.in_flight, self.most_in_flight)
        assert self.go.wait(60)
        super().write(*args, **kwargs)
        self.in_flight -= 1


def test_the_state_can_change_while_it_is_written(tmp_path: Path) -> None:
    value = tf.Variable([1.0, 2.0])
    checkpoints = SlowCheckpoints(str(tmp_path))

    def state() -> dict[str, Any]:
        return snapshot({"value": value})

    saver = BackgroundSaver(checkpoints, report=lambda step, message: pytest.fail(message))
    saver.save(1, state, metadata={})
    value.assign([8.0, 9.0])
    assert saver.busy
    assert checkpoints.steps() == []
    threading.Timer(0.2, checkpoints.go.set).start()
    saver.save(2, state, metadata={})  # waits for the first
    assert checkpoints.steps() == [1]
    saver.wait()
    assert not saver.busy
    assert checkpoints.most_in_flight == 1
    checkpoints.restore(1, value=value)
    assert value.numpy().tolist() == [1.0, 2.0]
    checkpoints.restore(2, value=value)
    assert value.numpy().tolist() == [8.0, 9.0]


def test_a_failed_save_is_reported_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = {"value": tf.Variable([1.0, 2.0])}
    checkpoints = Checkpoints(str(tmp_path), keep=1)
    reported = []
    saver = BackgroundSaver(checkpoints, report=lambda step, message: reported.append((step, message)))
    saver.save(1, lambda: snapshot(state), metadata={})
    saver.wait()

    def full(*args: Any, **kwargs: Any) -> None:
        raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(tf.raw_ops, "SaveV2", full)
        saver.save(2, lambda: snapshot(state), metadata={})
        saver.wait()
    assert saver.failed
    assert reported == [(2, "No space left on device")]
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]
    saver.save(3, lambda: snapshot(state), metadata={})
    saver.wait()
    assert not saver.failed
    assert checkpoints.steps() == [3]


@pytest.mark.parametrize("error", [ValueError("a bug"), UsageError("a damaged complete.json")])
def test_an_error_that_is_no_write_error_is_raised_in_the_training_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def broken(*args: Any, **kwargs: Any) -> None:
        raise error

    checkpoints = Checkpoints(str(tmp_path), keep=1)
    saver = BackgroundSaver(checkpoints, report=lambda step, message: pytest.fail(message))
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "write", broken)
        saver.save(1, dict, metadata={})
        with pytest.raises(type(error), match=str(error)):
            saver.wait()
    assert saver.failed
    saver.save(2, lambda: snapshot({"value": tf.Variable(1.0)}), metadata={})
    saver.wait()
    assert not saver.failed
