"""Kills runs of a verb, each at a later change to the file system.

test_faults.py and test_convert.py run this as a program, since it forks a child for each run and must not have other
threads.

    python -m tests.beam_pipeline.kill_runs FOLDER EVERY VERB ARGUMENT…     (the output folder replaces {OUT})

For k = EVERY, 2 EVERY, …, a run is killed (SIGKILL) at its k-th change: right before it moves a file into place,
deletes its staging folder, or releases its lock. Then its output is checked, and the same command runs again, every
other time with --resume; `annotate` always, since it replaces nothing without an option. This ends with the first run
that is not killed, and prints a JSON object: the number of
kills, and a list of failures.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from functools import partial
from pathlib import Path

from beam_pipeline.dataset import lock_kinds
from beam_pipeline.steps import commit
from beam_pipeline.support import filesystem
from beam_pipeline.verbs import annotate, convert, prepare, verify  # noqa: F401 (imported once, before the forks)
from tests.beam_pipeline.beam_signatures import remember_signatures
from tests.beam_pipeline.runs import content
from tests.fuzz.faults import Child
from tokenmill_reader.format.names import MANIFEST


def run(arguments: list[str], log: Path, kill_at: int | None = None) -> int | None:
    """Runs the verb in a child and returns the child's exit status. It is negative if a signal ended the child."""
    kill_child = None if kill_at is None else partial(kill_at_change, kill_at)
    return Child(arguments, log, prepare=kill_child).wait().status


def kill_at_change(number: int) -> None:
    """Makes this process kill itself right before change `number`."""
    calls = 0

    def killing(change):
        def count_change(*arguments):
            nonlocal calls
            calls += 1
            if calls == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return change(*arguments)

        return count_change

    filesystem.rename = killing(filesystem.rename)
    filesystem._move_to_new = killing(filesystem._move_to_new)
    commit.clear_staging = killing(commit.clear_staging)
    lock_kinds.FileLock.release = killing(lock_kinds.FileLock.release)


def main() -> None:
    remember_signatures()
    folder, step, *arguments = sys.argv[1:]
    output, log = Path(folder, "out"), Path(folder, "log")
    log.mkdir()
    argv = [argument.replace("{OUT}", str(output)) for argument in arguments]
    if run(argv, log):
        raise SystemExit("the undisturbed run failed")
    expected = content(output)
    failures: list[str] = []
    kill_count = 0
    while True:
        shutil.rmtree(output)
        change = (kill_count + 1) * int(step)
        status = run(argv, log, change)
        if status == 0:
            print(json.dumps({"kills": kill_count, "wrong": failures}))
            return
        kill_count += 1
        if status != -signal.SIGKILL:
            failures.append(f"change {change}: the run ended with status {status}")
        manifests = list(output.glob(f"*/{MANIFEST}"))
        for manifest in manifests:
            # In a child, too: a library that has read a shard may have threads, and must not be forked then.
            verify_result = Child(["verify", str(manifest.parent)], log).wait()
            if verify_result.status:
                failures.append(f"change {change}: {verify_result.out}{verify_result.err}")
        must_resume = len(manifests) == 2 or argv[0] == "annotate"
        resume = ["--resume"] if kill_count % 2 or must_resume else []
        if run([*argv, *resume], log):
            failures.append(f"change {change}: the next run failed")
        elif content(output) != expected:
            names = sorted(set(content(output)) ^ set(expected)) or "the same names"
            failures.append(f"change {change}: the next run {resume} wrote other bytes ({names})")


if __name__ == "__main__":
    main()
