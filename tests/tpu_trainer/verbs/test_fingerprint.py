"""--data.fingerprint allows only the dataset with that fingerprint; a run continues with another number of steps."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tpu_trainer.runs.run_folder import RunFolder
from tpu_trainer.verbs.command_line import parse


def test_other_data_is_rejected_before_anything_is_written(
    run_verb: Callable[..., int], dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    arguments = ["fit", "--output_dir", run, "--train.steps", 1, "--strategy", "cpu"]
    assert run_verb(*arguments, "--data.train", dataset / "train", "--data.fingerprint", "feed") == 2
    actual = json.loads((dataset / "train" / "manifest.json").read_text())["fingerprint"]
    assert f"--data.fingerprint is 'feed', but {dataset}/train has '{actual}'" in capsys.readouterr().err
    both_splits = json.dumps([str(dataset / "train"), str(dataset / "validation")])
    assert run_verb(*arguments, "--data.train", both_splits, "--data.fingerprint", actual) == 2
    assert "use the data with that fingerprint" in capsys.readouterr().err
    assert not run.exists()


def test_another_number_of_steps_is_reported_with_what_it_changes(
    run_verb: Callable[..., int], tokenizer_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["fit", "--output_dir", str(tmp_path / "run"), "--data.train", str(tmp_path / "nowhere")]
    for name, report in (
        ("cosine", ": the learning rate continues with the cosine schedule of a run of 2,000 steps"),
        ("constant", "\n"),
    ):
        schedule = ["--schedule.name", name]
        _, config = parse([*arguments, *schedule, "--train.steps", "1000"])
        RunFolder(str(tmp_path / "run")).start(config, str(tokenizer_folder))
        assert run_verb(*arguments, *schedule, "--train.steps", 2000) == 2  # the data do not exist
        assert f"--train.steps was 1,000 and is 2,000{report}" in capsys.readouterr().err
        assert run_verb(*arguments, *schedule, "--train.steps", 1000) == 2
        assert "train.steps" not in capsys.readouterr().err


def test_data_with_the_right_fingerprint_passes(
    run_verb: Callable[..., int], dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    actual = json.loads((dataset / "train" / "manifest.json").read_text())["fingerprint"]
    arguments = ["fit", "--output_dir", tmp_path / "run", "--data.train", dataset / "train"]
    # The error of the next check: this one has passed.
    missing_validation = ["--data.validation", tmp_path / "nowhere", "--strategy", "cpu"]
    assert run_verb(*arguments, *missing_validation, "--data.fingerprint", actual) == 2
    assert "nowhere: no such folder" in capsys.readouterr().err
