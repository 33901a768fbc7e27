"""One `fit` at a time writes to a run's folder."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.auth.credentials import AnonymousCredentials

from tests.google_cloud.gcs import Gcs
from tests.tpu_trainer.small_runs import fit_arguments
from tpu_trainer.cloud.objects import Objects
from tpu_trainer.cloud.run_lease import RunLease
from tpu_trainer.config import DataConfig, FitConfig
from tpu_trainer.runs import run_lock
from tpu_trainer.runs.run_folder import RunFolder
from tpu_trainer.runs.run_lock import FolderLock, LostLockError, held
from tpu_trainer.support.errors import ExitStatus, UsageError

URL = "gs://bucket/runs/one"
# Ends like a killed process.
KILLED = """
import os, sys
from tpu_trainer.runs.run_folder import RunFolder
from tpu_trainer.runs.run_lock import FolderLock
FolderLock(sys.argv[1]).acquire()
os._exit(9)
"""


def fail_to_wait(seconds: float) -> None:
    raise AssertionError("must not wait")


def test_a_second_fit_ends_with_status_2_and_changes_nothing(
    tmp_path: Path, dataset: Path, run_verb: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    with held(FolderLock(str(run))):
        before = [(path.name, path.read_bytes()) for path in run.iterdir()]
        assert run_verb(*fit_arguments(dataset, run, {})) == ExitStatus.USAGE
        stderr = capsys.readouterr().err
        assert f"another `fit` (process {os.getpid()} on " in stderr
        assert "wait until it ends" in stderr
        assert [(path.name, path.read_bytes()) for path in run.iterdir()] == before
    assert not run.exists()


def test_a_killed_process_leaves_no_lock_behind(tmp_path: Path) -> None:
    assert subprocess.run([sys.executable, "-c", KILLED, tmp_path], check=False).returncode == 9
    assert (tmp_path / "run.lock").exists()
    with held(FolderLock(str(tmp_path), sleep=fail_to_wait)):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("flock", [True, False])
def test_a_file_system_that_does_not_share_flock_between_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flock: bool
) -> None:
    """The other machine's process counts as alive while it renews the file, or until it removes it."""
    if not flock:

        def raise_not_implemented(*arguments: Any) -> None:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

        monkeypatch.setattr(fcntl, "flock", raise_not_implemented)
    other_lock = FolderLock(str(tmp_path), sleep=fail_to_wait)
    monkeypatch.setattr(run_lock, "_boot_id", lambda: "this machine")

    def lock_behind_other(sleep: Callable[[float], Any]) -> FolderLock:
        other_lock.acquire()
        fcntl.flock(other_lock._file, fcntl.LOCK_UN) if flock else None
        return FolderLock(str(tmp_path), sleep=sleep)

    with pytest.raises(UsageError, match="another `fit`"):
        lock_behind_other(lambda seconds: other_lock.renew()).acquire()
    other_lock.release()
    lock = lock_behind_other(lambda seconds: other_lock.release())
    lock.acquire()
    lock.release()
    waits: list[float] = []
    lock = lock_behind_other(waits.append)
    lock.acquire()
    assert sum(waits) == 60
    lock.renew()
    with pytest.raises(LostLockError):
        other_lock.renew()
    other_lock.release()
    lock.renew()
    lock.release()


def test_a_folder_of_a_process_killed_before_its_run_began_can_be_used(tmp_path: Path) -> None:
    config = FitConfig(output_dir=str(tmp_path), data=DataConfig(train="OUT/train"))
    for name in ("run.lock", "config.yaml.tmp"):
        (tmp_path / name).touch()
    RunFolder(str(tmp_path)).check_continues(config)
    (tmp_path / "other").touch()
    with pytest.raises(UsageError, match="contains 'other' but no run"):
        RunFolder(str(tmp_path)).check_continues(config)


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"--output_dir is .*: cannot be written \("):
        FolderLock(f"{tmp_path}/file/run").acquire()


def lease(gcs: Gcs, sleep: Callable[[float], Any] = fail_to_wait) -> RunLease:
    return RunLease(URL, Objects(AnonymousCredentials(), gcs.url), sleep=sleep)


def test_the_lock_in_cloud_storage(gcs: Gcs) -> None:
    first = lease(gcs)
    first.acquire()
    with pytest.raises(UsageError, match=r"run.lock: another `fit` \(process .* another --output_dir"):
        lease(gcs, lambda seconds: first.renew()).acquire()
    # It is released while another one waits.
    second = lease(gcs, lambda seconds: first.release())
    second.acquire()
    waits: list[float] = []
    third = lease(gcs, waits.append)
    third.acquire()
    assert sum(waits) == 90
    with pytest.raises(LostLockError, match="has taken this run over"):
        second.renew()
    second.release()
    third.renew()
    third.release()
    assert gcs.objects == {}


def test_a_process_that_has_lost_its_lock_ends_at_once(tmp_path: Path) -> None:
    code = """
import sys, time
from tpu_trainer.runs import run_lock
run_lock.RENEWAL_SECONDS = 0.1
with run_lock.held(run_lock.FolderLock(sys.argv[1])):
    (run_lock.Path(sys.argv[1]) / "run.lock").unlink()
    time.sleep(60)
"""
    result = subprocess.run(
        [sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=False
    )
    assert result.returncode == ExitStatus.USAGE
    assert "run.lock: removed or replaced; another `fit` may train there; this process ends" in result.stderr
