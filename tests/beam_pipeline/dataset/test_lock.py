"""The lock of a folder has one holder at a time, even if others die, hang or lose their connection."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from beam_pipeline.dataset import lock, lock_holder
from beam_pipeline.dataset.lock_holder import CloudJob, Holder, check_held
from beam_pipeline.support.errors import DataError, LockLost, UsageError
from tests.google_cloud.clients import redirect_google_cloud
from tests.google_cloud.gcs import Faults, Gcs
from tests.google_cloud.loopback import Request, Response

URL = "gs://data/out/_staging"
MINUTES = 60
JOB = CloudJob(project="p", region="r", name="prepare-x", id="2026-1")


def hold(folder: Path | str, **options):
    return lock.hold(str(folder), verb="prepare", fingerprint="f", **options)


def test_a_second_run_is_refused_with_a_message_that_names_the_first(tmp_path: Path):
    folder = tmp_path / "deep" / "out" / "_staging"
    with hold(folder) as run_lock:
        check_held(run_lock.path, run_lock.holder.run)
        with (
            pytest.raises(UsageError, match=rf"prepare, run by process {os.getpid()} on .* since .* UTC"),
            hold(folder),
        ):
            pass
        assert [path.name for path in folder.iterdir()] == ["run.lock"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("room", [0, 8])
def test_a_full_disk_is_an_error_that_names_the_lock_and_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
):
    write = os.pwrite

    def write_a_part(file: int, data: bytes, offset: int) -> int:
        if not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, data[:room], offset)

    monkeypatch.setattr(os, "pwrite", write_a_part)
    disk_full_error = pytest.raises(OSError, match=r"No space left on device: '.*out/_staging/run\.lock'")
    with disk_full_error, hold(tmp_path / "out" / "_staging"):
        pass
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []
    with hold(tmp_path / "out" / "_staging"):
        pass


def test_folders_that_existed_before_are_not_removed(tmp_path: Path):
    with hold(tmp_path / "_staging"):
        pass
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "_staging").mkdir()
    (tmp_path / "_staging" / "mine").touch()
    with hold(tmp_path / "_staging"):
        pass
    assert [path.name for path in (tmp_path / "_staging").iterdir()] == ["mine"]


def test_a_users_file_named_run_lock_is_not_deleted(tmp_path: Path):
    (tmp_path / "run.lock").write_text("my notes")
    with pytest.raises(UsageError, match="is not a lock that a run wrote"), hold(tmp_path):
        pass
    assert (tmp_path / "run.lock").read_text() == "my notes"


HOLDER = """
import sys, time
from beam_pipeline.dataset import lock
with lock.hold(sys.argv[1], verb="prepare", fingerprint="f"):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lock_ends_when_its_process_dies_but_not_while_it_is_stopped(
    tmp_path: Path, number: signal.Signals
):
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        assert holder.stdout.readline() == b"held\n"
        os.kill(holder.pid, number)
        if number == signal.SIGKILL:
            holder.wait(timeout=60)
            with hold(tmp_path) as run_lock:
                run_lock.check()
        else:
            os.waitid(os.P_PID, holder.pid, os.WSTOPPED)
            with pytest.raises(UsageError, match=rf"process {holder.pid} on"), hold(tmp_path):
                pass
    finally:
        holder.kill()
        holder.communicate(timeout=60)


def test_only_one_of_several_contenders_holds_the_lock_at_a_time(tmp_path: Path):
    holders: list[int] = []
    holder_counts: list[int] = []
    acquisitions: list[int] = []

    def contend(number: int) -> None:
        while len(acquisitions) < 12:
            try:
                with hold(tmp_path / "out" / "_staging"):
                    holders.append(number)
                    holder_counts.append(len(holders))
                    time.sleep(0)
                    holders.remove(number)
                    acquisitions.append(number)
            except UsageError:
                time.sleep(0.01)

    threads = [threading.Thread(target=contend, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert set(holder_counts) == {1} and len(acquisitions) >= 12
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def write_lock_of_another_machine(folder: Path, **fields: object) -> None:
    """Writes the lock of a run on another machine. No process here holds its flock."""
    holder = json.loads(Holder.this_process("prepare", "f").to_json())
    (folder / "run.lock").write_text(json.dumps({**holder, "boot": "another", "host": "node-7", **fields}))


def test_a_lock_of_another_machine_expires_after_ten_minutes_without_renewal(tmp_path: Path):
    write_lock_of_another_machine(tmp_path)
    with pytest.raises(UsageError, match=r"on node-7, .*alive 0 s ago.*delete .*/run.lock"), hold(tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["run.lock"]
    before = time.time() - 11 * MINUTES
    os.utime(tmp_path / "run.lock", (before, before))
    with hold(tmp_path) as run_lock:
        run_lock.check()


def test_a_local_lock_is_renewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lock_holder, "_SECONDS_BETWEEN_RENEWALS", 0.02)
    with hold(tmp_path) as run_lock:
        os.utime(run_lock.path, (0, 0))
        deadline = time.monotonic() + 60
        while Path(run_lock.path).stat().st_mtime == 0:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_without_flock_the_lock_depends_on_a_files_existence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    usage_error = pytest.raises(UsageError, match=r"if that run has ended, delete .*run\.lock\.held")
    with hold(tmp_path / "out"), usage_error, hold(tmp_path / "out"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_checking_a_lost_lock_raises_lock_lost(tmp_path: Path):
    with pytest.raises(LockLost, match=r"run\.lock was deleted"), hold(tmp_path) as run_lock:
        Path(run_lock.path).unlink()
        run_lock.check()
    with hold(tmp_path) as run_lock:
        run, path = run_lock.holder.run, run_lock.path
    with hold(tmp_path), pytest.raises(LockLost, match="another run has taken it over"):
        check_held(path, run)


def test_a_lock_in_a_bucket_excludes_a_second_run(gcs: Gcs):
    with hold(URL) as run_lock:
        run_lock.check()
        with (
            pytest.raises(
                UsageError, match=rf"prepare, run by process {os.getpid()} .*expires 0:10:00 after"
            ),
            hold(URL),
        ):
            pass
        assert set(gcs.objects_below(URL)) == {"run.lock"}
    assert gcs.objects_below(URL) == {}


class DroppingResponses(Gcs):
    """Executes every request, but drops every second response to an upload or a deletion."""

    lost_responses = 0
    request_count = 0

    def serve(self, request: Request) -> Response:
        answer = super().serve(request)
        if request.method in ("POST", "DELETE") and request.path != "/token":
            self.request_count += 1
            if self.request_count % 2:
                self.lost_responses += 1
                raise ConnectionAbortedError
        return answer


def test_a_lock_in_a_bucket_survives_errors_and_lost_responses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with DroppingResponses("data", faults=Faults(error_every=5)) as gcs:
        redirect_google_cloud(gcs, tmp_path, monkeypatch)
        with hold(URL) as run_lock:
            run_lock.check()
            with pytest.raises(UsageError, match="another run writes there"), hold(URL):
                pass
            run_lock.name_job(JOB, renewed=True)
            run_lock.check()
            run_lock.name_job(JOB, renewed=True)
        assert gcs.objects_below(URL) == {}
        assert gcs.lost_responses > 4 and gcs.failures


def test_exactly_one_of_several_runs_takes_over_a_stale_lock_in_a_bucket(gcs: Gcs):
    with hold(URL) as stale_lock:
        gcs.age(f"{URL}/run.lock", 11 * MINUTES)
        start, errors, holders = threading.Barrier(4), [], []
        done = threading.Barrier(4)

        def contend() -> None:
            start.wait(30)
            try:
                with hold(URL) as run_lock:
                    holders.append(run_lock.holder.run)
                    done.wait(60)
            except UsageError as error:
                errors.append(error)
                done.wait(60)

        threads = [threading.Thread(target=contend) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=120)
        assert (len(holders), len(errors)) == (1, 3)
        with pytest.raises(LockLost):
            stale_lock.check()
        with pytest.raises(LockLost):
            stale_lock.name_job(JOB, renewed=True)
        stale_lock.keep()
    assert gcs.objects_below(URL) == {}


def test_a_renewed_lock_in_a_bucket_is_not_stale(gcs: Gcs, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lock_holder, "_SECONDS_BETWEEN_RENEWALS", 0.05)
    with hold(URL):
        gcs.age(f"{URL}/run.lock", 11 * MINUTES)
        before = gcs.objects["data", "out/_staging/run.lock"].generation
        deadline = time.monotonic() + 60
        while gcs.objects["data", "out/_staging/run.lock"].generation == before:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        with pytest.raises(UsageError, match="alive"), hold(URL):
            pass
    assert gcs.objects_below(URL) == {}


def test_a_jobs_lock_is_stale_only_after_the_job_has_ended(gcs: Gcs):
    with hold(URL) as run_lock:
        run_lock.name_job(JOB, renewed=False)  # the launcher does not wait
    assert set(gcs.objects_below(URL)) == {"run.lock"}
    queried_jobs: list[CloudJob] = []

    def runs(job: CloudJob) -> bool:
        queried_jobs.append(job)
        return True

    gcs.age(f"{URL}/run.lock", 100 * MINUTES)
    with (
        pytest.raises(
            UsageError, match=r"the Dataflow job prepare-x \(2026-1\), submitted by .*the job is active"
        ),
        hold(URL, job_runs=runs),
    ):
        pass
    assert queried_jobs == [JOB]

    def raise_unknown_state(job: CloudJob) -> bool:
        raise DataError("403 somebody may not list jobs")

    with (
        pytest.raises(
            UsageError, match=r"403 somebody.*; if the job has ended, delete gs://data/out/_staging/run.lock"
        ),
        hold(URL, job_runs=raise_unknown_state),
    ):
        pass
    with hold(URL, job_runs=lambda job: False) as next_lock:
        next_lock.check()
    assert gcs.objects_below(URL) == {}


def test_a_jobs_last_step_releases_its_lock_and_can_be_retried(gcs: Gcs):
    with hold(URL) as run_lock:
        run_lock.name_job(JOB, renewed=True)
        lock.release_job_lock(run_lock.path, run_lock.holder.run)
        lock.release_job_lock(run_lock.path, run_lock.holder.run)  # the step may run again
    assert gcs.objects_below(URL) == {}
    with hold(URL) as next_lock, pytest.raises(LockLost):
        lock.release_job_lock(next_lock.path, run_lock.holder.run)
