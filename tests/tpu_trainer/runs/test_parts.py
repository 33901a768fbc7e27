"""Checkpoints that several processes write together, each its parts, and of which each reads any part."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tpu_trainer.runs import parts as parts_module
from tpu_trainer.runs.channel import Channel
from tpu_trainer.runs.checkpoint import Checkpoints
from tpu_trainer.runs.marker import Marker
from tpu_trainer.runs.parts import Part, Parts, whole_parts
from tpu_trainer.support import files
from tpu_trainer.support.errors import InterruptedRun, UsageError


class Threads:
    """Stands in for the coordination service between processes, which are threads here."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.condition = threading.Condition()
        self.texts: dict[tuple[int, int], str] = {}
        self.lost = False

    def run(self, act: Callable[[Channel], Any]) -> list[Any]:
        """Returns the results, or the exceptions, of all processes."""

        def result(index: int) -> Any:
            try:
                return act(ThreadChannel(self, index))
            except Exception as error:
                return error

        with ThreadPoolExecutor(self.count) as executor:
            return list(executor.map(result, range(self.count)))


class ThreadChannel(Channel):
    def __init__(self, threads: Threads, index: int) -> None:
        self.index, self.count = index, threads.count
        self._threads = threads
        self._messages = 0

    def gather(self, text: str) -> list[str]:
        self._send(text)
        return self._wait_for(range(self.count)) if self.index == 0 else []

    def from_first(self, text: str) -> str:
        if self.index == 0:
            self._send(text)
        else:
            self._messages += 1
        return self._wait_for([0])[0]

    def _send(self, text: str) -> None:
        self._messages += 1
        with self._threads.condition:
            self._threads.texts[self._messages, self.index] = text
            self._threads.condition.notify_all()

    def _wait_for(self, senders: Any) -> list[str]:
        keys = [(self._messages, sender) for sender in senders]
        with self._threads.condition:
            if not self._threads.condition.wait_for(
                lambda: self._threads.texts.keys() >= set(keys), timeout=60
            ):
                raise OSError("another process is lost")
            return [self._threads.texts[key] for key in keys]


def arrays() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {
        "network/layers.mlp.up.weight": random.standard_normal((3, 8, 4)).astype(np.float32),
        "network/embeddings.weight": random.standard_normal((16, 8)).astype(np.float32),
        "optimizer/step": np.int64(7),
        "running": random.standard_normal(5).astype(np.float32),
    }


def divided(values: dict[str, np.ndarray], counts: dict[str, tuple[int, ...]], processes: int) -> list[Parts]:
    """Returns the parts of each process, given into how many parts each dimension of an array is divided.

    Arrays without counts are process 0's.
    """
    own: list[dict[str, list[Part]]] = [{name: [] for name in values} for _ in range(processes)]
    for name, value in values.items():
        dimensions = counts.get(name, (1,) * np.ndim(value))
        for number, block in enumerate(itertools.product(*map(range, dimensions))):
            sizes = [size // parts for size, parts in zip(np.shape(value), dimensions, strict=True)]
            start = tuple(index * size for index, size in zip(block, sizes, strict=True))
            place = tuple(slice(first, first + size) for first, size in zip(start, sizes, strict=True))
            own[number % processes][name].append(Part(np.shape(value), start, np.asarray(value)[place]))
    return own


COUNTS = {"network/layers.mlp.up.weight": (1, 4, 2), "network/embeddings.weight": (4, 1)}


@pytest.fixture(params=["local", "url"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"{tmp_path}/checkpoints" if request.param == "local" else f"file://{tmp_path}/checkpoints"


@pytest.mark.parametrize("processes", [1, 2, 4])
@pytest.mark.parametrize("file_bytes", [64, 256 << 20])  # several files of a process, and one
def test_processes_write_a_checkpoint_together(
    folder: str, processes: int, file_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts_module, "_FILE_BYTES", file_bytes)
    values = arrays()
    own = divided(values, COUNTS, processes)

    def write(channel: Channel) -> None:
        checkpoints = Checkpoints(folder, channel=channel)
        for step in (1, 2):
            checkpoints.write(step, own[channel.index], metadata={"data": "d"})

    assert Threads(processes).run(write) == [None] * processes
    checkpoints = Checkpoints(folder)
    checkpoints.check(2)
    assert checkpoints.steps() == [2]
    names = files.list_names(checkpoints.path(2))
    data = [name for name in names if ".data-" in name]
    assert set(names) == {"complete.json", "state.index", *data}
    assert len(data) > processes if file_bytes == 64 else len(data) == processes
    shapes = {name: np.shape(value) for name, value in values.items()}
    read = dict(checkpoints.read(2, shapes))
    for name, value in values.items():
        np.testing.assert_array_equal(read[name][...], value)
    # As another mesh divides them.
    np.testing.assert_array_equal(
        read["network/layers.mlp.up.weight"][1:3, :, 1:3], values["network/layers.mlp.up.weight"][1:3, :, 1:3]
    )
    np.testing.assert_array_equal(
        read["network/embeddings.weight"][6:9, 2:], values["network/embeddings.weight"][6:9, 2:]
    )
    # Layer by layer, as TensorFlow reads it.
    reader = tf.train.load_checkpoint(files.join(checkpoints.path(2), "state"))
    np.testing.assert_array_equal(
        reader.get_tensor("network/layers.2.mlp.up.weight"), values["network/layers.mlp.up.weight"][2]
    )


def test_the_parts_determine_the_files(tmp_path: Path) -> None:
    own = divided(arrays(), COUNTS, 2)
    written = []
    for name in ("a", "b"):
        Threads(2).run(lambda channel, name=name: write_step(tmp_path / name, channel, own))
        written.append(
            {path.name: path.read_bytes() for path in (tmp_path / name / "step-00000001").iterdir()}
        )
    assert written[0] == written[1]
    assert len(written[0]) == 4


def write_step(folder: Path, channel: Channel, own: list[Parts]) -> None:
    Checkpoints(str(folder), channel=channel).write(1, own[channel.index], metadata={})


@pytest.mark.parametrize("failing", [0, 1])
def test_if_one_cannot_write_all_report_it_and_nothing_stays(
    tmp_path: Path, failing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = divided(arrays(), COUNTS, 2)
    save = tf.raw_ops.SaveV2

    def full_disk(*, prefix: str, **arguments: Any) -> None:
        if "step-00000002" in prefix and f"-{failing:05d}-" in prefix:
            raise OSError(28, "No space left on device")
        save(prefix=prefix, **arguments)

    monkeypatch.setattr(tf.raw_ops, "SaveV2", full_disk)

    def write(channel: Channel) -> list[str]:
        checkpoints = Checkpoints(str(tmp_path), channel=channel, keep=3)
        errors = []
        for step in (1, 2, 3):
            try:
                checkpoints.write(step, own[channel.index], metadata={})
            except OSError as error:
                errors.append(f"{step}: {error}")
        return errors

    results = Threads(2).run(write)
    assert results[failing] == ["2: [Errno 28] No space left on device"]
    assert results[1 - failing] == [f"2: process {failing}: [Errno 28] No space left on device"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000001", "step-00000003"]


def test_files_of_a_killed_attempt_are_not_in_the_next(tmp_path: Path) -> None:
    own = divided(arrays(), COUNTS, 2)
    folder = tmp_path / "step-00000001"
    folder.mkdir()
    (folder / "0123456789abcdef-00001-00000.index").write_bytes(b"of a process that was killed")
    assert Threads(2).run(lambda channel: write_step(tmp_path, channel, own)) == [None, None]
    assert sorted(path.name for path in folder.iterdir()) == [
        "complete.json",
        "state.data-00000-of-00002",
        "state.data-00001-of-00002",
        "state.index",
    ]


def test_an_existing_checkpoint_only_gets_a_loss(tmp_path: Path) -> None:
    own = divided(arrays(), COUNTS, 2)

    def write(channel: Channel) -> None:
        checkpoints = Checkpoints(str(tmp_path), channel=channel)
        checkpoints.write(1, own[channel.index], metadata={})
        checkpoints.write(1, {}, metadata={"validation_loss": 2.5})

    assert Threads(2).run(write) == [None, None]
    assert Checkpoints(str(tmp_path)).best() == 1


@pytest.fixture
def two_steps(tmp_path: Path) -> Path:
    """The checkpoints 1 and 2 of three processes."""
    own = divided(arrays(), COUNTS, 3)

    def write(channel: Channel) -> None:
        for step in (1, 2):
            checkpoints = Checkpoints(str(tmp_path), channel=channel, keep=2)
            checkpoints.write(step, own[channel.index], metadata={"validation_loss": float(step)})

    assert Threads(3).run(write) == [None] * 3
    return tmp_path


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_each_process_reads_a_share_to_verify_and_all_files_are_read_once(
    two_steps: Path, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: dict[str, list[int]] = {}
    checksum, local = files._crc32c, threading.local()

    def record(path: str) -> str:
        read.setdefault(Path(path).name, []).append(local.index)
        return checksum(path)

    def verify(channel: Channel) -> int:
        local.index = channel.index
        return Checkpoints(str(two_steps), channel=channel).latest()

    monkeypatch.setattr(files, "_crc32c", record)
    assert Threads(count).run(verify) == [2] * count
    names = sorted(
        path.name for path in (two_steps / "step-00000002").iterdir() if path.name != "complete.json"
    )
    assert sorted(read) == names and all(len(each) == 1 for each in read.values())
    readers = [each for [each] in map(read.get, names)]
    assert readers == sorted(readers)  # neighbours, as a mesh divides them


@pytest.mark.parametrize(
    ("sizes", "shares"),
    [
        ([8] * 6 + [1], ["01", "23", "456"]),  # two files of each process, and the index
        ([3, 3, 2, 2, 1], ["0", "12", "34"]),
        ([100, 1, 1], ["", "0", "12"]),
        ([0, 0], ["01", "", ""]),
    ],
)
def test_shares_are_neighbours_of_about_the_same_size(sizes: list[int], shares: list[str]) -> None:
    marker = Marker({}, {str(number): files.FileInfo(size) for number, size in enumerate(sizes)})
    assert ["".join(sorted(marker.share(index, 3))) for index in range(3)] == shares


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("kind", ["another byte", "shorter", "missing"])
def test_all_processes_leave_out_what_one_of_them_finds_damaged(
    two_steps: Path, number: int, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = sorted((two_steps / "step-00000002").glob("state.*"))[number]
    content = path.read_bytes()
    path.unlink()
    if kind != "missing":
        path.write_bytes(content[:-1] + (bytes([content[-1] ^ 1]) if kind == "another byte" else b""))

    def verify(channel: Channel) -> tuple[int, int | None]:
        checkpoints = Checkpoints(str(two_steps), channel=channel)
        return checkpoints.latest(), checkpoints.best()

    assert Threads(3).run(verify) == [(1, 1)] * 3
    assert caplog.text.count(f"step-00000002: damaged ({path.name} ") == 3
    for act in (
        lambda channel: Checkpoints(str(two_steps), channel=channel).check(2),
        lambda channel: Checkpoints(str(two_steps), channel=channel).leave_out_damaged(strict=True),
    ):
        errors = Threads(3).run(act)
        assert [type(error) for error in errors] == [UsageError] * 3
        assert len({str(error) for error in errors}) == 1


def test_a_disk_that_fails_for_one_process_is_an_error_of_all(
    two_steps: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(path: str) -> str:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(files, "_crc32c", broken)
    errors = Threads(3).run(lambda channel: Checkpoints(str(two_steps), channel=channel).latest())
    assert [type(error) for error in errors] == [UsageError] * 3
    assert all("step-00000002: cannot be read ([Errno 5] Input/output error)" in str(each) for each in errors)


def test_a_lost_process_interrupts_the_others(two_steps: Path) -> None:
    class Lost(Channel):
        count = 2

        def gather(self, text: str) -> list[str]:
            raise OSError("another process is lost")

    with pytest.raises(InterruptedRun, match=r"not verified \(another process is lost\)"):
        Checkpoints(str(two_steps), channel=Lost()).latest()


OTHER_SHAPES = {
    "has shape None there": {"network/other": (2,)},
    "and [8, 5] here": {"network/layers.mlp.up.weight": (3, 8, 5)},
    "but the model here has 2 layers": {"network/layers.mlp.up.weight": (2, 8, 4)},
    "'network/layers.3.mlp.up.weight' has shape None there": {"network/layers.mlp.up.weight": (4, 8, 4)},
}


def test_arrays_of_another_model_are_refused_before_they_are_read(tmp_path: Path) -> None:
    checkpoints = Checkpoints(str(tmp_path))
    checkpoints.write(1, whole_parts(arrays()), metadata={})
    for message, shapes in OTHER_SHAPES.items():
        with pytest.raises(UsageError) as error:
            list(checkpoints.read(1, shapes))
        assert message in str(error.value)


def test_a_part_that_is_lost_is_an_error(tmp_path: Path) -> None:
    own = divided(arrays(), COUNTS, 2)
    del own[1]["network/embeddings.weight"]
    assert Threads(2).run(lambda channel: write_step(tmp_path, channel, own)) == [None, None]
    read = dict(Checkpoints(str(tmp_path)).read(1, {"network/embeddings.weight": (16, 8)}))
    with pytest.raises(UsageError, match="cannot be read"):
        read["network/embeddings.weight"][...]


def test_a_new_checkpoint_stays_if_an_old_one_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = Checkpoints(str(tmp_path))
    checkpoints.write(1, whole_parts(arrays()), metadata={})
    remove = files.remove_tree

    def busy(folder: str) -> None:
        if "step-00000001" in folder:
            raise OSError(16, "Device or resource busy")
        remove(folder)

    monkeypatch.setattr(files, "remove_tree", busy)
    with pytest.raises(OSError, match="busy"):
        checkpoints.write(2, whole_parts(arrays()), metadata={})
    assert Checkpoints(str(tmp_path)).steps() == [2]


def test_after_a_failed_removal_of_a_failed_checkpoint_processes_write_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = divided(arrays(), COUNTS, 2)
    save, remove = tf.raw_ops.SaveV2, files.remove_tree
    failures = iter(["once"])

    def full_disk(*, prefix: str, **arguments: Any) -> None:
        if "step-00000002" in prefix:
            raise OSError(28, "No space left on device")
        save(prefix=prefix, **arguments)

    def busy(folder: str) -> None:
        if "step-00000002" in folder and next(failures, None):
            raise OSError(16, "Device or resource busy")
        remove(folder)

    monkeypatch.setattr(tf.raw_ops, "SaveV2", full_disk)
    monkeypatch.setattr(files, "remove_tree", busy)

    def write(channel: Channel) -> list[int]:
        checkpoints = Checkpoints(str(tmp_path), channel=channel)
        failed = []
        for step in (1, 2, 3):
            try:
                checkpoints.write(step, own[channel.index], metadata={})
            except OSError:
                failed.append(step)
        return failed

    assert Threads(2).run(write) == [[2], [2]]
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000003"]


def test_a_loss_that_cannot_be_recorded_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = Checkpoints(str(tmp_path))
    checkpoints.write(1, whole_parts(arrays()), metadata={})

    def full_disk(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "write_text", full_disk)
    with pytest.raises(OSError, match="No space"):
        checkpoints.write(1, {}, metadata={"validation_loss": 2.5})
