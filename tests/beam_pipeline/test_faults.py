"""Injects faults that a run must survive: afterwards there is either no dataset or a complete one."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from beam_pipeline.verify import check_dataset

OPTIONS = ["--splits", "train=0.8,validation=0.2", "--max_length", "64", "--unit_bytes", "20000"]


def command(corpus: Path, tokenizer_folder: Path, output: Path | str, *options: str) -> list[str]:
    common = ["--input", str(corpus), "--tokenizer", str(tokenizer_folder), "--output", str(output)]
    return [*common, *OPTIONS, *options]


def program(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "beam_pipeline", "prepare", *arguments]


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, corpus: Path, tokenizer_folder: Path) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    subprocess.run(program(*command(corpus, tokenizer_folder, out, "--shard_size", "150")), check=True)
    return content(out)


def test_killed_at_every_change_of_the_file_system(tmp_path: Path, corpus: Path, tokenizer_folder: Path):
    few = ("--unit_bytes", "150000", "--shard_size", "1200")  # each unit and each shard is a few kills
    arguments = command(corpus, tokenizer_folder, "{OUT}", *few)
    script = Path(__file__).with_name("kill_runs.py")
    result = subprocess.run(
        [sys.executable, str(script), str(tmp_path), *arguments], stdout=subprocess.PIPE, check=True
    )
    report = json.loads(result.stdout)
    assert report["wrong"] == []
    assert report["kills"] > 15


def processes() -> list[tuple[int, int, int]]:
    """Returns (process, parent, group) of all running processes, without zombies."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            pid, rest = stat.read_text().split(" (", 1)
            state, parent, group = rest.rpartition(")")[2].split()[:3]
            if state != "Z":
                found.append((int(pid), int(parent), int(group)))
    return found


def children(parent: int) -> list[int]:
    """Returns all descendants of the process `parent`."""
    own = [pid for pid, above, _ in processes() if above == parent]
    return [pid for child in own for pid in (child, *children(child))]


def of_group(group: int) -> list[int]:
    return [pid for pid, _, found in processes() if found == group]


def test_a_killed_worker_ends_the_run_with_a_word_and_the_rest_can_be_resumed(
    tmp_path: Path, corpus: Path, tokenizer_folder: Path, undisturbed: dict[str, bytes]
):
    out = tmp_path / "out"
    arguments = command(corpus, tokenizer_folder, out, "--shard_size", "150")
    workers = ["--direct_running_mode", "multi_processing", "--direct_num_workers", "2"]
    without_programs = {**os.environ, "PATH": str(tmp_path)}  # as in an image that has no `ps`
    run = subprocess.Popen(
        program(*arguments, *workers), stderr=subprocess.PIPE, start_new_session=True, env=without_programs
    )
    try:
        while not list(out.glob("_staging/*/plan.jsonl")):
            time.sleep(0.05)
            assert run.poll() is None
        workers_seen: list[int] = []
        while not workers_seen:
            workers_seen = [
                pid
                for pid in children(run.pid)
                if b"beam_pipeline.worker_process" in Path(f"/proc/{pid}/cmdline").read_bytes()
            ]
        os.kill(workers_seen[-1], signal.SIGKILL)
        _, errors = run.communicate(timeout=180)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)
    assert run.returncode == 1
    assert "prepare: a worker process died" in errors.decode().splitlines()[-1]
    assert b"Traceback" not in errors
    deadline = time.monotonic() + 60
    while left := of_group(run.pid):  # what was killed takes a moment to go
        assert time.monotonic() < deadline, f"processes {left} are left"
        time.sleep(0.1)
    assert not list(out.glob("*/manifest.json"))
    subprocess.run(program(*arguments, "--resume"), check=True)
    assert content(out) == undisturbed


def test_a_full_disk_is_said_and_the_rest_can_be_resumed(
    tmp_path: Path, corpus: Path, tokenizer_folder: Path, undisturbed: dict[str, bytes]
):
    disk = tmp_path / "disk"
    disk.mkdir()
    whole = sum(map(len, undisturbed.values()))
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={int(whole * 0.7) // 4096 * 4096}", "tmpfs", str(disk)],
        capture_output=True,
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        arguments = command(corpus, tokenizer_folder, disk / "out", "--shard_size", "150")
        run = subprocess.run(program(*arguments), capture_output=True, text=True)
        assert run.returncode == 1
        assert "No space left on device" in run.stderr.splitlines()[-1], run.stderr
        assert "Traceback" not in run.stderr.splitlines()[-1]
        assert not list(disk.glob("out/*/manifest.json"))
        assert not list(disk.glob("out/_staging/*/temporary/*"))  # no half of a shard
        subprocess.run(["mount", "-o", "remount,size=100m", str(disk)], check=True)
        subprocess.run(program(*arguments, "--resume"), check=True)
        assert content(disk / "out") == undisturbed
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize("damage", ["corrupted", "deleted"])
def test_a_damaged_shard_is_noticed_and_made_again(
    tmp_path: Path, corpus: Path, tokenizer_folder: Path, undisturbed: dict[str, bytes], damage: str
):
    out = tmp_path / "out"
    for name, data in undisturbed.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_bytes(data)
    shard = sorted((out / "train").glob("*.tfrecord"))[1]
    if damage == "deleted":
        shard.unlink()
    else:
        shard.write_bytes(shard.read_bytes()[:-1] + b"x")
    defects = [defect for _, found in check_dataset(str(out)) for defect in found]
    assert defects and all(shard.name in defect for defect in defects)
    arguments = command(corpus, tokenizer_folder, out, "--shard_size", "150")
    subprocess.run(program(*arguments, "--overwrite"), check=True)
    assert content(out) == undisturbed
    shutil.rmtree(out)
