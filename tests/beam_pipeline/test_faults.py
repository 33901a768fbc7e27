"""Injects faults that a run must survive: afterwards there is either no dataset or a complete one."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

from beam_pipeline import __main__
from beam_pipeline.steps import commit, deduplicate, tails, tokenize
from beam_pipeline.steps.job import Job
from beam_pipeline.support.errors import DataError
from beam_pipeline.verbs import prepare
from tests.beam_pipeline.runs import (
    PROGRAM,
    arguments,
    content,
    defects,
    fail_before_the_manifests,
    of_session,
    wait_for_the_end,
)

OPTIONS = ["--splits", "train=0.8,validation=0.2", "--max_length", "64", "--unit_bytes", "20000"]
OPTIONS += ["--shard_size", "150"]


@pytest.fixture(scope="module")
def undisturbed_content(tmp_path_factory, corpus: Path, tokenizer_folder: Path) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    prepare.main(arguments(corpus, tokenizer_folder, out, *OPTIONS))
    return content(out)


@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.wide)])
def test_killed_at_changes_of_the_file_system(
    tmp_path: Path, documents: list[str], tokenizer_folder: Path, step: int
):
    small_corpus = tmp_path / "small.txt"
    small_corpus.write_text("\n".join(documents[:60]), encoding="utf-8")
    small_sizes = ("--unit_bytes", "8000", "--shard_size", "1200")  # each unit and each shard is a few kills
    command = [sys.executable, "-m", "tests.beam_pipeline.kill_runs", str(tmp_path), str(step), "prepare"]
    command += arguments(small_corpus, tokenizer_folder, "{OUT}", *OPTIONS, *small_sizes)
    report = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    assert report["wrong"] == []
    assert report["kills"] > 15 / step


@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.wide)])
@pytest.mark.parametrize("verb", ["prepare", "annotate"])
def test_killed_at_changes_of_steps_that_curate(
    tmp_path: Path, documents: list[str], tokenizer_folder: Path, verb: str, step: int
):
    texts = [" ".join(documents[number : number + 3]) for number in range(0, 60, 3)]
    texts += [f"{text} again" for text in texts[::4]]
    (tmp_path / "web.txt").write_text("\n".join(texts), encoding="utf-8")
    (tmp_path / "bench.txt").write_text(" ".join(texts[3].split()[:20]))
    sizes = ["--unit_bytes", "4000" if verb == "prepare" else "1000"]
    if verb == "prepare":
        argv = arguments(tmp_path / "web.txt", tokenizer_folder, "{OUT}", *OPTIONS, "--shard_size", "1200")
        argv += ["--filter", "pii", "--dedup", "near", "--decontaminate", str(tmp_path / "bench.txt"), *sizes]
    else:
        argv = ["--input", str(tmp_path / "web.txt"), "--measure", "pii", "--output", "{OUT}", *sizes]
    command = [sys.executable, "-m", "tests.beam_pipeline.kill_runs", str(tmp_path), str(step), verb, *argv]
    report = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    assert report["wrong"] == []
    assert report["kills"] > (20 if verb == "prepare" else 5) / step


def test_a_killed_worker_ends_the_run_with_a_word_and_the_rest_can_be_resumed(
    tmp_path: Path, corpus: Path, tokenizer_folder: Path, undisturbed_content: dict[str, bytes]
):
    out = tmp_path / "out"
    command = arguments(corpus, tokenizer_folder, out, *OPTIONS)
    workers = ["--direct_running_mode", "multi_processing", "--direct_num_workers", "2"]
    environment = {**os.environ, "PATH": str(tmp_path)}  # as in an image that has no `ps`
    run = subprocess.Popen(
        [*PROGRAM, *command, *workers], stderr=subprocess.PIPE, start_new_session=True, env=environment
    )
    try:
        while not list(out.glob("_staging/*/plan.jsonl")):
            time.sleep(0.05)
            assert run.poll() is None
        workers_seen: list[int] = []
        while not workers_seen:
            workers_seen = [
                pid
                for pid in of_session(run.pid)
                if b"beam_pipeline.support.worker_process" in Path(f"/proc/{pid}/cmdline").read_bytes()
            ]
        os.kill(workers_seen[-1], signal.SIGKILL)
        _, errors = run.communicate(timeout=180)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)
    assert run.returncode == 1
    assert "prepare: a worker process died" in errors.decode().splitlines()[-1]
    assert b"Traceback" not in errors
    wait_for_the_end(run.pid)
    assert not list(out.glob("*/manifest.json"))
    prepare.main([*command, "--resume"])
    assert content(out) == undisturbed_content


def test_a_full_disk_is_said_and_the_rest_can_be_resumed(
    tmp_path: Path, corpus: Path, tokenizer_folder: Path, undisturbed_content: dict[str, bytes], capsys
):
    disk = tmp_path / "disk"
    disk.mkdir()
    total_bytes = sum(map(len, undisturbed_content.values()))
    size = int(total_bytes * 0.7) // 4096 * 4096
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)]
    mount_result = subprocess.run(mount, capture_output=True)
    if mount_result.returncode:
        pytest.skip(f"no file system can be mounted here: {mount_result.stderr.decode().strip()}")
    try:
        command = arguments(corpus, tokenizer_folder, disk / "out", *OPTIONS)
        assert __main__.run("prepare", command) == 1
        last_line = capsys.readouterr().err.splitlines()[-1]
        assert last_line.startswith("prepare: ") and "No space left on device" in last_line
        assert not list(disk.glob("out/*/manifest.json"))
        assert not list(disk.glob("out/_staging/*/temporary/*"))  # no half of a shard
        subprocess.run(["mount", "-o", "remount,size=100m", str(disk)], check=True)
        prepare.main([*command, "--resume"])
        assert content(disk / "out") == undisturbed_content
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_damaged_shards_are_noticed_and_made_again(
    tmp_path: Path, corpus: Path, tokenizer_folder: Path, undisturbed_content: dict[str, bytes]
):
    out = tmp_path / "out"
    for name, data in undisturbed_content.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_bytes(data)
    _, corrupted_shard, deleted_shard, *_ = sorted((out / "train").glob("*.tfrecord"))
    corrupted_shard.write_bytes(corrupted_shard.read_bytes()[:-1] + b"x")
    deleted_shard.unlink()
    messages = " ".join(defects(out))
    assert corrupted_shard.name in messages and deleted_shard.name in messages
    prepare.main(arguments(corpus, tokenizer_folder, out, *OPTIONS, "--overwrite"))
    assert content(out) == undisturbed_content


def test_a_resumed_run_completes_missing_and_damaged_offsets(
    tmp_path: Path,
    corpus: Path,
    tokenizer_folder: Path,
    undisturbed_content: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
):
    command = arguments(corpus, tokenizer_folder, tmp_path / "out", *OPTIONS)
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="stopped before the manifests"):
        patch.setattr("beam_pipeline.steps.write.commit", fail_before_the_manifests)
        prepare.main(command)
    missing_file, damaged_file, *_ = sorted((tmp_path / "out" / "train" / "offsets").iterdir())
    missing_file.unlink()
    damaged_file.write_bytes(damaged_file.read_bytes()[:-1] + b"x")
    prepare.main([*command, "--resume"])
    assert content(tmp_path / "out") == undisturbed_content


@pytest.mark.parametrize(
    ("step", "name", "files"),
    [
        (deduplicate, "curated_batches", "unit-*.hashes"),
        (tokenize, "kept_documents", "unit-*.rows"),
        (tails, "pack_pieces", "tails-*.rows"),
    ],
)
def test_a_step_that_lost_the_lock_of_its_run_publishes_nothing_more(
    step: ModuleType,
    name: str,
    files: str,
    tmp_path: Path,
    corpus: Path,
    tokenizer_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    step_before = getattr(step, name)

    def lose_the_lock(*args: object, **options: object) -> object:
        (tmp_path / "out" / "_staging" / "run.lock").unlink(missing_ok=True)
        return step_before(*args, **options)

    monkeypatch.setattr(step, name, lose_the_lock)
    command = arguments(corpus, tokenizer_folder, tmp_path / "out", *OPTIONS, "--dedup", "exact")
    with pytest.raises(DataError, match="so this run stops"):
        prepare.main(command)
    assert not list(tmp_path.glob(f"out/_staging/*/units/{files}"))


@pytest.mark.parametrize("staging_remains", [False, True])
def test_a_job_that_fails_after_the_commit_has_finished_the_dataset(
    tmp_path: Path,
    corpus: Path,
    tokenizer_folder: Path,
    undisturbed_content: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    staging_remains: bool,
):
    finish = commit.finish

    def finish_and_fail(job: Job) -> None:
        if not staging_remains:
            finish(job)
        raise DataError("the plan is gone")

    monkeypatch.setattr(commit, "finish", finish_and_fail)
    out = tmp_path / "out"
    prepare.main(arguments(corpus, tokenizer_folder, out, *OPTIONS))
    assert "the job failed after it had finished the dataset: " in caplog.text
    assert "the plan is gone" in caplog.text
    assert "train: " in capsys.readouterr().out
    assert content(out) == undisturbed_content
    assert not (out / "_staging").exists()
