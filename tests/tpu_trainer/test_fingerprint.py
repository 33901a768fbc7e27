"""--data.fingerprint allows only the dataset with that fingerprint."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest


def test_other_data_is_rejected_before_anything_is_written(
    run_verb: Callable[..., int], dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    arguments = ["fit", "--output_dir", run, "--train.steps", 1, "--strategy", "cpu"]
    assert run_verb(*arguments, "--data.train", dataset / "train", "--data.fingerprint", "feed") == 2
    actual = json.loads((dataset / "train" / "manifest.json").read_text())["fingerprint"]
    assert f"--data.fingerprint is 'feed', but {dataset}/train has '{actual}'" in capsys.readouterr().err
    both = json.dumps([str(dataset / "train"), str(dataset / "validation")])
    assert run_verb(*arguments, "--data.train", both, "--data.fingerprint", actual) == 2
    assert "use the data with that fingerprint" in capsys.readouterr().err
    assert not run.exists()


def test_data_with_the_right_fingerprint_passes(
    run_verb: Callable[..., int], dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    actual = json.loads((dataset / "train" / "manifest.json").read_text())["fingerprint"]
    arguments = ["fit", "--output_dir", tmp_path / "run", "--data.train", dataset / "train"]
    # The error of the next check: this one has passed.
    nowhere = ["--data.validation", tmp_path / "nowhere", "--strategy", "cpu"]
    assert run_verb(*arguments, *nowhere, "--data.fingerprint", actual) == 2
    assert "nowhere: no such folder" in capsys.readouterr().err
