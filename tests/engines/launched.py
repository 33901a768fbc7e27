"""A run of a verb on Flink in a process of its own, which tests disturb in a certain stage."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from beam_pipeline.support.processes import descendants
from tests.engines.clusters import Flink
from tests.engines.servers import ROOT, wait_for

Start = Callable[..., "Run"]


class Stage(NamedTuple):
    """A part of a run."""

    step: str
    """The label of one of its steps."""
    files: str
    """Pattern of files in the output folder that the stage writes."""
    count: int | None
    """How many of these files show that it is under way. None for one per work unit."""


STAGES = {
    "hashing documents": Stage("HashDocuments", "_staging/*/units/*.hashes", 5),
    "grouping hashes": Stage("JoinDuplicates", "_staging/*/units/*.hashes", None),
    "tokenizing": Stage("Tokenize", "_staging/*/units/unit-*.rows", 5),
    "packing tails": Stage("PackTails", "_staging/*/units/tails-*.rows", 1),
    "writing shards": Stage("WriteShards", "*/*.tfrecord", 5),
    "committing": Stage("Commit", "_staging/*/written/splits.json", 1),
}


CURATION_STAGES = {
    "searching for n-grams": Stage("FindNgrams", "_staging/*/units/*.matches", 5),
    "sketching documents": Stage("SketchDocuments", "_staging/*/units/*.sketches", 5),
    "annotating": Stage("Annotate", "unit-*.parquet", 5),
}
"""Those of runs with the options of curation."""


class Run:
    """A verb of the pipeline on Flink.

    Args:
        arguments: The verb and its arguments.
        output: Its output folder.
        program: The module of the command line.
    """

    def __init__(self, arguments: list[object], output: Path, program: str = "beam_pipeline"):
        self.output = output
        self._process = subprocess.Popen(
            [sys.executable, "-m", program, *map(str, arguments), "--output", str(output)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # A shell's background jobs inherit an ignored SIGINT, and so would this.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_for(self, stage: str) -> None:
        """Waits until the run is in the middle of a stage."""
        _, files, count = (STAGES | CURATION_STAGES)[stage]

        def has_begun() -> bool | None:
            file_count = len(list(self.output.glob(files)))
            return (file_count and file_count >= (count or self._units())) or None

        wait_for(f"the middle of {stage}", has_begun, self._check_running)

    def wait_for_step(self, flink: Flink, step: str) -> None:
        """Waits until a step has begun, by its label."""
        flink.wait_for_step(step, self._check_running)

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def end(self) -> tuple[int, str]:
        """Waits until the run ends, and returns its exit status and its messages."""
        _, messages = self._process.communicate(timeout=500)
        return self._process.returncode, messages

    def _units(self) -> int:
        (plan,) = self.output.glob("_staging/*/plan.jsonl")
        return len(plan.read_text().splitlines())

    def _check_running(self) -> None:
        assert self._process.poll() is None, self._process.communicate()[1]


def python_workers(flink: Flink) -> list[int]:
    """Returns the process ids of the running Python workers."""
    return [pid for pid in descendants(flink.pool.server.pid) if b"sdk_worker_main" in _command_of(pid)]


def _command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:  # it has just ended
        return b""
