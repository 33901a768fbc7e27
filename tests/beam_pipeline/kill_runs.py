"""Kills runs of `prepare`, each at a later change to the file system.

test_faults.py runs this as a program, since it forks a child for each run and must not have other threads.

    python kill_runs.py FOLDER ARGUMENT…     ({OUT} in the arguments stands for the run's output folder)

For k = 1, 2, …, a run is killed (SIGKILL) at its k-th change: right before it moves a file into place, deletes its
staging folder, or releases its lock. Then its output is checked, and the same command runs again, every other time with
--resume. This ends with the first run that is not killed, and prints a JSON object: the number of kills, and a list of
failures.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import traceback
from pathlib import Path

from beam_pipeline import filesystem, prepare
from beam_pipeline.dataset import lock_kinds
from beam_pipeline.dataset.manifest import MANIFEST
from beam_pipeline.steps import commit
from beam_pipeline.verify import check_split


def run(arguments: list[str], kill_at: int | None = None) -> int:
    """Runs prepare in a child and returns the child's exit status. It is negative if a signal ended the child."""
    child = os.fork()
    if not child:
        try:
            if kill_at is not None:
                kill_at_change(kill_at)
            with Path(os.devnull).open("w") as sys.stdout, Path(os.devnull).open("w") as sys.stderr:
                prepare.main(arguments)
            os._exit(0)
        except BaseException:
            traceback.print_exc(file=sys.__stderr__)
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def kill_at_change(number: int) -> None:
    """Makes this process kill itself right before change `number`."""
    calls = 0

    def killing(change):
        def changed(*arguments):
            nonlocal calls
            calls += 1
            if calls == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return change(*arguments)

        return changed

    filesystem.rename = killing(filesystem.rename)
    filesystem._move_to_new = killing(filesystem._move_to_new)
    commit.clear_staging = killing(commit.clear_staging)
    lock_kinds.FileLock.release = killing(lock_kinds.FileLock.release)


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def main() -> None:
    folder, *arguments = sys.argv[1:]
    output = Path(folder, "out")
    filled = [argument.replace("{OUT}", str(output)) for argument in arguments]
    if run(filled):
        raise SystemExit("the undisturbed run failed")
    expected = content(output)
    wrong: list[str] = []
    kills = 0
    while True:
        shutil.rmtree(output)
        status = run(filled, kills + 1)
        if status == 0:
            print(json.dumps({"kills": kills, "wrong": wrong}))
            return
        kills += 1
        if status != -signal.SIGKILL:
            wrong.append(f"change {kills}: the run ended with status {status}")
        manifests = list(output.glob(f"*/{MANIFEST}"))
        for manifest in manifests:
            wrong += [f"change {kills}: {defect}" for defect in check_split(str(manifest.parent))]
        resume = ["--resume"] if kills % 2 or len(manifests) == 2 else []
        if run([*filled, *resume]):
            wrong.append(f"change {kills}: the next run failed")
        elif content(output) != expected:
            names = sorted(set(content(output)) ^ set(expected)) or "the same names"
            wrong.append(f"change {kills}: the next run {resume} wrote other bytes ({names})")


if __name__ == "__main__":
    main()
