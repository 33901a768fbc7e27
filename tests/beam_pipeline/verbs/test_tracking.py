"""`prepare --track`: its progress and the dataset's figures, without influence on the dataset."""

from __future__ import annotations

from pathlib import Path

import pytest

from beam_pipeline.support.errors import UsageError
from beam_pipeline.verbs import prepare
from tests.beam_pipeline.runs import arguments, content, fail_before_the_manifests
from tests.fake_tracker import FakeTracker
from tokenmill_reader.tracking import trackers

SPLITS = ["--splits", "train=0.8,validation=0.2", "--unit_bytes", "20000", "--max_length", "32"]


def test_a_resumed_run_continues_the_record_of_a_failed_one(
    corpus: Path, tokenizer_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeTracker(tmp_path, monkeypatch)
    run = [*arguments(corpus, tokenizer_folder, tmp_path / "out", *SPLITS), "--track", "trackio"]
    with monkeypatch.context() as patch:
        patch.setattr("beam_pipeline.steps.write.commit", fail_before_the_manifests)
        with pytest.raises(RuntimeError, match="stopped before the manifests"):
            prepare.main(run)
    prepare.main([*run, "--resume"])
    calls = fake.calls()
    assert [call[0] for call in calls] == ["init", "log", "finish", "init", "log", "log", "finish"]
    assert calls[0][1] == calls[3][1]
    assert (calls[0][2]["max_length"], calls[0][2]["output"]) == (32, str(tmp_path / "out"))
    steps = [call[1] for call in calls if call[0] == "log"]
    assert steps == sorted(steps)
    assert calls[1][2]["progress/tokenize_MB"] > 0
    figures = calls[-2][2]
    documents = figures["train/documents"] + figures["validation/documents"]
    assert figures["excluded/records"] == documents + figures["excluded/blank_documents"]
    assert figures["train/max_length"] == 32
    assert figures["seconds"] > 0
    # Finished: nothing to track.
    prepare.main([*run, "--resume"])
    assert fake.calls() == calls


def test_a_tracker_that_hangs_has_no_influence_on_the_dataset(
    corpus: Path, tokenizer_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeTracker(tmp_path, monkeypatch)
    monkeypatch.setattr(trackers, "SECONDS_TO_FINISH", 0.1)
    monkeypatch.setattr(trackers, "SECONDS_ALONE", 1)
    prepare.main(arguments(corpus, tokenizer_folder, tmp_path / "plain", *SPLITS))
    fake.write("time.sleep(9999)")
    prepare.main([*arguments(corpus, tokenizer_folder, tmp_path / "out", *SPLITS), "--track", "trackio"])
    assert content(tmp_path / "out") == content(tmp_path / "plain")


def test_trackers_are_checked_first(corpus: Path, tokenizer_folder: Path, tmp_path: Path) -> None:
    run = arguments(corpus, tokenizer_folder, tmp_path / "out")
    with pytest.raises(UsageError, match="--track foo: must be some of wandb, mlflow, trackio, otlp"):
        prepare.main([*run, "--track", "foo"])
    with pytest.raises(UsageError, match="--track wandb: needs wandb; install it"):
        prepare.main([*run, "--track", "wandb"])
    assert not (tmp_path / "out").exists()
