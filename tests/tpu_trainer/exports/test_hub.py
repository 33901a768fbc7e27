"""Pushes to the Hub with its real client, against a stand-in for its endpoints."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi, constants

from tests.tpu_trainer.hub_stand_in import HubStandIn, hub_stand_in
from tests.tpu_trainer.trained import GPT2, run_of
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.exports.checkpoint_export import export_checkpoint
from tpu_trainer.exports.hub import HubPusher, check_model_id
from tpu_trainer.runs.run_folder import RunFolder
from tpu_trainer.support.errors import UsageError


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubStandIn]:
    with hub_stand_in() as stand_in:
        monkeypatch.setattr(constants, "ENDPOINT", stand_in.url)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # uploads by LFS, which the stand-in has
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        yield stand_in


@pytest.fixture
def run(tokenizer_folder: Path, vocabulary: Vocabulary, tmp_path: Path) -> RunFolder:
    return run_of(tmp_path / "run", tokenizer_folder, vocabulary)


def exported(run: RunFolder, step: int, folder: Path) -> dict[str, bytes]:
    folder.mkdir()
    export_checkpoint(run, step, folder)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_what_is_pushed_is_the_export(hub: HubStandIn, run: RunFolder, tmp_path: Path) -> None:
    pusher = HubPusher("lab/tiny", private=True, folder=run)
    pusher.push_in_background(10)
    pusher.push_in_background(20)  # the first push is still in progress
    pusher.finish(30)
    repository = hub.repositories["lab/tiny"]
    assert repository.is_private
    assert [commit.summary for commit in repository.commits] == ["Step 10", "Step 30"]
    for commit, step in zip(repository.commits, (10, 30), strict=True):
        assert commit.files == exported(run, step, tmp_path / str(step))
    assert hub.tokens == {"Bearer hf_secret"}


def test_an_interrupted_run_does_not_wait_for_an_upload(
    hub: HubStandIn, run: RunFolder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    uploading, may_upload = threading.Event(), threading.Event()

    def upload(*arguments: Any, **options: Any) -> None:
        uploading.set()
        assert may_upload.wait(60)

    monkeypatch.setattr(HfApi, "upload_folder", upload)
    pusher = HubPusher("lab/tiny", private=True, folder=run)
    pusher.push_in_background(10)
    assert uploading.wait(60)
    pusher.abandon()
    assert "fit: step 10 was not pushed to lab/tiny: the run is interrupted" in capsys.readouterr().err
    assert all(thread.daemon for thread in threading.enumerate() if thread.name == "hub")
    may_upload.set()
    pusher.wait()


def test_a_push_that_fails_is_reported(
    hub: HubStandIn, run: RunFolder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.refuse = 403
    HubPusher("tiny", private=False, folder=run).finish(30)
    stderr = capsys.readouterr().err
    assert "fit: step 30 was not pushed to tiny (HfHubHTTPError: " in stderr
    assert f"; the run is complete in {run.path}; run the same command to push again" in stderr
    hub.refuse = None
    HubPusher("tiny", private=False, folder=run).finish(11)
    assert "step 11 was not pushed" in capsys.readouterr().err  # the run has no such checkpoint
    assert hub.repositories["me/tiny"].commits == []
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    HubPusher("tiny", private=False, folder=run).finish(30)
    assert "step 30 was not pushed to tiny (ConnectError: " in capsys.readouterr().err


@pytest.mark.parametrize("name", ["a/b/c", "-x", "a b", "x" * 100])
def test_invalid_repository_names_are_rejected(name: str) -> None:
    with pytest.raises(UsageError, match="--hub_model_id is "):
        check_model_id(name)


def test_fit_pushes_at_checkpoints_and_at_the_end(
    hub: HubStandIn,
    dataset: Path,
    tmp_path: Path,
    run_verb: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = {
        "output_dir": tmp_path / "run",
        "data.train": dataset / "train",
        "objective": "clm",
        "hub_model_id": "lab/tiny",
        "train.steps": 5,
        "train.batch_size": 8,
        "train.checkpoint_every": 2,
        "strategy": "cpu",
    }
    options |= {f"model.config.{name}": value for name, value in GPT2.items()}
    arguments = ["fit", *(item for name, value in options.items() for item in (f"--{name}", str(value)))]
    hub.refuse = 500
    environment = os.environ | {"HF_ENDPOINT": hub.url, "HF_TOKEN": "hf_secret", "HF_HUB_DISABLE_XET": "1"}
    result = subprocess.run(
        [sys.executable, "-m", "tpu_trainer", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    # Failed pushes do not end training.
    assert result.returncode == 0, result.stderr
    assert "step 2 was not pushed to lab/tiny" in result.stderr
    assert "step 5 was not pushed to lab/tiny" in result.stderr
    hub.refuse = None
    assert run_verb(*arguments) == 0
    stderr = capsys.readouterr().err
    assert "already finished, with 5 steps" in stderr
    assert f"step 5 pushed to {hub.url}/lab/tiny" in stderr
    (commit,) = hub.repositories["lab/tiny"].commits
    assert commit.files == exported(RunFolder(str(tmp_path / "run")), 5, tmp_path / "export")
    assert run_verb(*arguments, "--hub_model_id", "a/b/c") == 2
    assert "--hub_model_id is 'a/b/c'" in capsys.readouterr().err
