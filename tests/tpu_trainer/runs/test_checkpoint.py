"""Checkpoints are complete or absent, and are written while training changes the state."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from tests.tpu_trainer.trained import snapshot
from tpu_trainer.runs.background_saver import BackgroundSaver
from tpu_trainer.runs.checkpoint import Checkpoints
from tpu_trainer.runs.marker import Marker
from tpu_trainer.runs.parts import Parts, whole_parts
from tpu_trainer.support import files
from tpu_trainer.support.errors import UsageError


def save(checkpoints: Checkpoints, step: int, state: dict[str, Any], **metadata: Any) -> None:
    checkpoints.write(step, whole_parts(snapshot(state)), metadata=metadata)


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
    # A run that is interrupted in the evaluation of its newest weights evaluates them when it continues.
    save(checkpoints, 6, state)
    save(checkpoints, 6, state, validation_loss=2.0)
    assert checkpoints.best() == 6


def test_an_unfinished_checkpoint_is_not_read_and_is_removed(tmp_path: Path) -> None:
    state = {"value": tf.Variable(1.0)}
    checkpoints = Checkpoints(str(tmp_path), keep=2)
    save(checkpoints, 5, state)
    save(checkpoints, 10, state)
    (tmp_path / "step-00000010" / "complete.json").unlink()
    assert checkpoints.latest() == 5
    save(checkpoints, 12, state)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000005", "step-00000012"]


def test_names_are_those_of_the_parts_and_their_variables(tmp_path: Path) -> None:
    def state(scale: float) -> dict[str, Any]:
        return {
            "network": {"layers.mlp.up.weight": tf.Variable([scale])},
            "optimizer": {
                "step": tf.Variable(int(scale)),
                "mean": {"layers.mlp.up.weight": tf.Variable([2 * scale])},
            },
            "running": tf.Variable([3 * scale]),
        }

    checkpoints = Checkpoints(str(tmp_path))
    save(checkpoints, 1, state(5))
    restored = state(0)
    checkpoints.restore(1, **restored)
    values = {name: value.tolist() for name, value in snapshot(restored).items()}
    assert values == {
        "network/layers.mlp.up.weight": [5],
        "optimizer/step": 5,
        "optimizer/mean/layers.mlp.up.weight": [10],
        "running": [15],
    }


def test_a_checkpoint_of_another_model_is_an_error(tmp_path: Path) -> None:
    checkpoints = Checkpoints(str(tmp_path))
    save(checkpoints, 1, {"value": tf.Variable([1.0, 2.0])})
    for arguments, message in (
        ({"value": tf.Variable([1.0, 2.0, 3.0])}, r"shape \[2\] there and \[3\] here"),
        ({"other": tf.Variable(1.0)}, r"'other' has shape None there"),
    ):
        with pytest.raises(UsageError, match=message):
            checkpoints.restore(1, **arguments)


DAMAGE: dict[str, tuple[str, Callable[[bytes], bytes | None]]] = {
    "truncated data": ("state.data-00000-of-00001", lambda data: data[:-1]),
    "empty data": ("state.data-00000-of-00001", lambda data: b""),
    "missing data": ("state.data-00000-of-00001", lambda data: None),
    "another byte": ("state.data-00000-of-00001", lambda data: data[:-1] + bytes([data[-1] ^ 1])),
    "truncated index": ("state.index", lambda data: data[:-1]),
    "another index": ("state.index", lambda data: data[:9] + bytes([data[9] ^ 1]) + data[10:]),
    "missing index": ("state.index", lambda data: None),
    "truncated marker": ("complete.json", lambda data: data[:20]),
    "empty marker": ("complete.json", lambda data: b""),
    "another marker": ("complete.json", lambda data: data.replace(b'"d2"', b'"d1"')),
    "a marker of another step": ("complete.json", lambda data: data.replace(b'"step": 2', b'"step": 1')),
    "not UTF-8": ("complete.json", lambda data: b"\xff\xfe"),
    "not an object": ("complete.json", lambda data: b"[]"),
}


def damage(checkpoints: Checkpoints, step: int, kind: str) -> None:
    name, change = DAMAGE[kind]
    path = Path(checkpoints.path(step).removeprefix("file://")) / name
    data = change(path.read_bytes())
    path.unlink()
    if data is not None:
        path.write_bytes(data)


@pytest.mark.parametrize("kind", DAMAGE)
def test_the_checkpoint_before_a_damaged_one_is_used(
    folder: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    value = tf.Variable([0.0, 0.0])
    for step in (1, 2):
        value.assign([step, -step])
        save(Checkpoints(folder, keep=1 + step), step, {"value": value}, data=f"d{step}", validation_loss=1.0)
    damage(Checkpoints(folder), 2, kind)
    name = "step-00000002: damaged ("
    with pytest.raises(UsageError, match=re.escape(name) + ".*remove this folder"):
        Checkpoints(folder).check(2)
    with pytest.raises(UsageError, match=re.escape(name) + ".*remove this folder"):
        Checkpoints(folder).leave_out_damaged(strict=True)
    checkpoints = Checkpoints(folder, keep=1)
    assert checkpoints.latest() == checkpoints.best() == 1
    assert name in caplog.text
    assert "the newest that is whole is of step 1" in caplog.text
    checkpoints.restore(1, value=value)
    assert value.numpy().tolist() == [1, -1]
    # The steps are repeated: the damaged checkpoint must neither count as written nor replace one that is whole.
    save(checkpoints, 2, {"value": value}, data="d2")
    assert Checkpoints(folder).steps() == [1, 2]
    Checkpoints(folder).check(2)


def test_without_a_whole_checkpoint_the_remedy_is_named(tmp_path: Path) -> None:
    checkpoints = Checkpoints(str(tmp_path), keep=2)
    for step in (1, 2):
        save(checkpoints, step, {"value": tf.Variable(1.0)})
        damage(checkpoints, step, "truncated data")
    with pytest.raises(
        UsageError, match=r"step-00000002: damaged .* no other .* remove .* from the first step"
    ):
        checkpoints.latest()


@pytest.mark.parametrize("keep", [1, 2])
def test_checkpoints_that_a_running_fit_removes_are_not_damaged(
    folder: str, keep: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    state = {"value": tf.Variable(1.0)}
    running_checkpoints = Checkpoints(folder, keep=keep)
    for step in (1, 2):
        save(running_checkpoints, step, state)
    list_checksums = files.list_checksums
    steps = iter([3, 4])

    def save_and_list(*arguments: Any, **options: Any) -> dict[str, files.FileInfo]:
        for step in steps:
            monkeypatch.setattr(files, "list_checksums", list_checksums)
            save(running_checkpoints, step, state)
            monkeypatch.setattr(files, "list_checksums", save_and_list)
        return list_checksums(*arguments, **options)

    monkeypatch.setattr(files, "list_checksums", save_and_list)
    assert Checkpoints(folder).latest() == 4
    assert caplog.text == ""


def test_any_changed_bit_of_the_marker_is_noticed(tmp_path: Path) -> None:
    checkpoints = Checkpoints(str(tmp_path))
    save(checkpoints, 1, {"value": tf.Variable(1.0)}, data="d", validation_loss=0.1)
    data = (tmp_path / "step-00000001" / "complete.json").read_bytes()
    Marker.parse(data.decode(), step=1)
    for bit in range(8 * len(data)):
        damaged_data = bytearray(data)
        damaged_data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ValueError):
            Marker.parse(bytes(damaged_data).decode(), step=1)


def test_a_run_without_checkpoints_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no complete checkpoint"):
        Checkpoints(str(tmp_path / "checkpoints")).latest()


class SlowCheckpoints(Checkpoints):
    """Writes when the test allows it."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder, keep=9)
        self.may_save = threading.Event()
        self.in_flight = self.most_in_flight = 0

    def write(self, *args: Any, **kwargs: Any) -> None:
        self.in_flight += 1
        self.most_in_flight = max(self.in_flight, self.most_in_flight)
        assert self.may_save.wait(60)
        super().write(*args, **kwargs)
        self.in_flight -= 1


def test_the_state_can_change_while_it_is_written(tmp_path: Path) -> None:
    value = tf.Variable([1.0, 2.0])
    checkpoints = SlowCheckpoints(str(tmp_path))

    def state() -> Parts:
        return whole_parts(snapshot({"value": value}))

    saver = BackgroundSaver(checkpoints, report=lambda step, message: pytest.fail(message))
    saver.save(1, state, metadata={})
    value.assign([8.0, 9.0])
    assert saver.busy
    assert checkpoints.steps() == []
    threading.Timer(0.2, checkpoints.may_save.set).start()
    saver.save(2, state, metadata={})  # waits for the first
    assert checkpoints.steps()[:1] == [1]  # the second may be complete, too
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
    saver.save(1, lambda: whole_parts(snapshot(state)), metadata={})
    saver.wait()

    def raise_disk_full(*args: Any, **kwargs: Any) -> None:
        raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(tf.raw_ops, "SaveV2", raise_disk_full)
        saver.save(2, lambda: whole_parts(snapshot(state)), metadata={})
        saver.wait()
    assert saver.failed
    assert reported == [(2, "No space left on device")]
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]
    saver.save(3, lambda: whole_parts(snapshot(state)), metadata={})
    saver.wait()
    assert not saver.failed
    assert checkpoints.steps() == [3]


@pytest.mark.parametrize("error", [ValueError("a bug"), UsageError("a damaged complete.json")])
def test_an_error_that_is_no_write_error_is_raised_in_the_training_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def raise_error(*args: Any, **kwargs: Any) -> None:
        raise error

    checkpoints = Checkpoints(str(tmp_path), keep=1)
    saver = BackgroundSaver(checkpoints, report=lambda step, message: pytest.fail(message))
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "write", raise_error)
        saver.save(1, dict, metadata={})
        with pytest.raises(type(error), match=str(error)):
            saver.wait()
    assert saver.failed
    saver.save(2, lambda: whole_parts(snapshot({"value": tf.Variable(1.0)})), metadata={})
    saver.wait()
    assert not saver.failed
