"""Measures wall time, CPU time and peak memory of processes, as reported by the operating system."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Measured:
    """The measurements of a finished process and its children."""

    seconds: float
    """Wall time, including start-up."""
    cpu_seconds: float
    """User and system time of all processes."""
    peak_bytes: int
    """Peak memory of the largest process."""


def measure(command: list[str], log: Path, environment: dict[str, str] | None = None) -> Measured:
    """Runs a command and writes its output to `log`.

    Raises:
        RuntimeError: If the command fails. The message has the end of its output.
    """
    began = time.monotonic()
    with log.open("w") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **(environment or {})}
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{log.read_text()[-2000:]}")
    return Measured(time.monotonic() - began, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def table(header: list[str], rows: list[list[str]]) -> str:
    """Formats a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
