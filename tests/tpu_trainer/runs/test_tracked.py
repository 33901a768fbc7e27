"""Trackers get each record of a run once, under one id, however often the run starts again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tokenmill_reader.tracking import Record
from tpu_trainer.config import DataConfig, FitConfig
from tpu_trainer.runs import tracked
from tpu_trainer.runs.metrics import MetricsLog
from tpu_trainer.runs.run_folder import RunFolder
from tpu_trainer.runs.tracked import TrackedRun, check_trackers
from tpu_trainer.support.errors import UsageError


class Recorder:
    """In place of `Trackers`: keeps what each gets."""

    runs: list[Recorder]

    def __init__(self, names: Iterable[str], record: Record, *, report: Any) -> None:
        self.record = record
        self.steps: dict[str, list[tuple[int, str]]] = {name: [] for name in names}
        self.succeeded: bool | None = None
        self.runs.append(self)

    def log(self, step: int, figures: Mapping[str, float], *, names: Iterable[str]) -> None:
        for name in names:
            self.steps[name].append((step, next(iter(figures))))

    def finish(self, *, succeeded: bool) -> None:
        self.succeeded = succeeded


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Recorder]:
    Recorder.runs = []
    monkeypatch.setattr(tracked, "Trackers", Recorder)
    return Recorder.runs


def log_of(path: Path, track: str, *, last_step: int, writable: bool = True) -> MetricsLog:
    config = FitConfig(output_dir=str(path), data=DataConfig(train="train"), track=track)
    folder = RunFolder(str(path), writable=writable)
    return MetricsLog(
        folder,
        last_step=last_step,
        tensorboard=False,
        trackers=lambda records: TrackedRun(config, folder, records),
    )


def test_a_continued_run_continues_its_record_and_a_new_tracker_gets_all(
    tmp_path: Path, runs: list[Recorder]
) -> None:
    log = log_of(tmp_path, "wandb", last_step=0)
    for step in (1, 10, 20):
        log.append({"step": step, "loss": 1.0})
    log.append({"step": 20, "eval": {"loss": 1.0}})
    log.close()
    log.finish_trackers(succeeded=False)
    log = log_of(tmp_path, "wandb,otlp", last_step=10)
    for step in (20, 30):
        log.append({"step": step, "loss": 2.0})
        log.append({"step": step, "eval": {"loss": 2.0}})
    log.append({"step": 30, "eval": {"loss": 3.0}})  # a run that has ended evaluates its last step again
    log.finish_trackers(succeeded=True)
    first, second = runs
    assert (first.record.id, first.record.name) == (second.record.id, tmp_path.name)
    assert second.record.parameters["track"] == "wandb,otlp"
    train, evaluation = "train/loss", "eval/loss"
    assert first.steps == {"wandb": [(1, train), (10, train), (20, train), (20, evaluation)]}
    assert second.steps["wandb"] == [(30, train), (30, evaluation)]
    assert second.steps["otlp"] == [(1, train), (10, train)] + [
        (step, name) for step in (20, 30) for name in (train, evaluation)
    ]
    assert (first.succeeded, second.succeeded) == (False, True)


def test_only_the_process_that_writes_tracks(tmp_path: Path, runs: list[Recorder]) -> None:
    log = log_of(tmp_path, "wandb", last_step=0, writable=False)
    log.append({"step": 1, "loss": 1.0})
    log.finish_trackers(succeeded=True)
    assert runs == []
    assert not (tmp_path / "trackers.json").exists()


@pytest.mark.parametrize("content", ["{", "{}", '{"id": "../x", "trackers": []}', '{"id": "x"}'])
def test_a_damaged_file_is_named_with_the_remedy(tmp_path: Path, content: str, runs: list[Recorder]) -> None:
    (tmp_path / "trackers.json").write_text(content)
    with pytest.raises(UsageError, match=r"trackers.json: damaged .*; remove it; the trackers then begin"):
        log_of(tmp_path, "wandb", last_step=0)


def test_trackers_are_checked_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def config(output: str, track: str) -> FitConfig:
        return FitConfig(output_dir=output, data=DataConfig(train="train"), track=track)

    with pytest.raises(UsageError, match="--track is 'wandb,foo': must be some of wandb, mlflow"):
        config("run", "wandb,foo")
    with pytest.raises(UsageError, match="--track wandb: needs wandb; install it: pip install"):
        check_trackers(config("run", "wandb"))
    monkeypatch.setattr(tracked, "problem", lambda name, folder: None if folder else "no place")
    check_trackers(config("file:///run", "wandb"))
    with pytest.raises(UsageError, match="--track mlflow: no place"):
        check_trackers(config("gs://bucket/run", "mlflow"))
