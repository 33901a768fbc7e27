"""The log keeps every record in order, even if the disk is full."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

from tpu_trainer.runs.metrics import MetricsLog
from tpu_trainer.runs.run_folder import RunFolder
from tpu_trainer.support import files
from tpu_trainer.support.errors import UsageError


def events(folder: Path) -> list[tuple[str, int, float]]:
    """(name, step, value) of every scalar in TensorBoard's files."""
    logged_events = []
    for path in sorted(folder.glob("events.out.tfevents.*")):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                logged_events.append((value.tag, event.step, float(tf.make_ndarray(value.tensor))))
    return logged_events


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    (tmp_path / "run").mkdir()
    return RunFolder(str(tmp_path / "run"))


def test_a_continued_log_drops_records_of_repeated_steps(folder: RunFolder, tmp_path: Path) -> None:
    log = MetricsLog(folder, last_step=0, tensorboard=True)
    for step in (1, 10, 20):
        log.append({"step": step, "loss": float(step)})
    log.append({"step": 20, "eval": {"loss": 7.0, "rows": 3}})
    log.close()
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2')  # a killed process
    assert events(tmp_path / "run" / "tensorboard") == [
        ("train/loss", 1, 1.0),
        ("train/loss", 10, 10.0),
        ("train/loss", 20, 20.0),
        ("eval/loss", 20, 7.0),
        ("eval/rows", 20, 3.0),
    ]
    log = MetricsLog(folder, last_step=10, tensorboard=True)
    log.append({"step": 15, "loss": 15.0})
    log.close()
    assert folder.metrics() == [{"step": step, "loss": float(step)} for step in (1, 10, 15)]
    assert [step for _, step, _ in events(tmp_path / "run" / "tensorboard")] == [1, 10, 15]


@pytest.mark.parametrize(
    "line",
    [
        *[b'{"step": 2, "lo', b"", b"\x00\x00", b"\xff", b"2", b'{"loss": 1.0}', b'{"step": "2"}'],
        *[b'{"step": 2, "loss": "x"}', b'{"step": 2, "eval": 1}', b'{"step": 2, "eval": {"loss": null}}'],
    ],
)
def test_a_damaged_line_of_the_log_is_an_error_that_names_it(
    folder: RunFolder, tmp_path: Path, line: bytes
) -> None:
    path = tmp_path / "run" / "metrics.jsonl"
    path.write_bytes(b'{"step": 1, "loss": 1.0}\n' + line + b'\n{"step": 3, "loss": 3.0}\n')
    with pytest.raises(UsageError, match=r"metrics.jsonl, line 2: damaged \(.*\); remove this line"):
        MetricsLog(folder, last_step=1, tensorboard=False)


@pytest.mark.parametrize(
    "content", [b"", b"\xff", b"7", b'{"steps": 1', b'{"steps": "1", "data": ""}', b"[1]"]
)
def test_other_damaged_files_are_errors_that_name_them(
    folder: RunFolder, tmp_path: Path, content: bytes
) -> None:
    for name, read in (("summary.json", folder.summary), ("data.json", folder.data)):
        (tmp_path / "run" / name).write_bytes(content)
        with pytest.raises(UsageError, match=rf"{name}: damaged \(.*\); remove it"):
            read()


def test_an_evaluation_replaces_that_of_the_same_step(folder: RunFolder) -> None:
    log = MetricsLog(folder, last_step=0, tensorboard=False)
    for record in (
        {"step": 5, "loss": 1.0},
        {"step": 5, "eval": {"loss": 2.0}},
        {"step": 5, "eval": {"loss": 3.0}},
    ):
        log.append(record)
    log.close()
    assert folder.metrics() == [{"step": 5, "loss": 1.0}, {"step": 5, "eval": {"loss": 3.0}}]
    assert not files.is_dir(folder.tensorboard)


def test_records_that_a_full_disk_rejects_are_written_later(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = MetricsLog(folder, last_step=0, tensorboard=True)
    log.append({"step": 1, "loss": 1.0})

    def write_half(path: str, text: str) -> None:
        with Path(path).open("a") as file:
            file.write(text[:5])
        raise OSError(28, "No space left on device")

    class Full:
        def write(self, record: object) -> None:
            raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(files, "append_text", write_half)
        patch.setattr(log, "_tensorboard", Full())
        log.append({"step": 2, "loss": 2.0})
        assert log._tensorboard is None
        log._tensorboard = None
    error = capsys.readouterr().err
    assert "metrics.jsonl cannot be written ([Errno 28] No space left on device); training continues" in error
    assert "tensorboard cannot be written (No space left on device); training continues without it" in error
    log.close()
    assert folder.metrics() == [{"step": 1, "loss": 1.0}, {"step": 2, "loss": 2.0}]


def test_a_disk_that_is_full_at_the_start_does_not_end_training(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def raise_disk_full(path: str) -> None:
        raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")

    monkeypatch.setattr(tf.summary, "create_file_writer", raise_disk_full)
    log = MetricsLog(folder, last_step=0, tensorboard=True)
    log.append({"step": 1, "loss": 1.0})
    log.close()
    assert "tensorboard cannot be written (No space left on device)" in capsys.readouterr().err
    assert folder.metrics() == [{"step": 1, "loss": 1.0}]


def test_tensorboard_starts_in_this_environment() -> None:
    command = Path(sys.executable).with_name("tensorboard")
    done = subprocess.run([command, "--version_tb"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
