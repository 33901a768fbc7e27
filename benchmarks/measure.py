"""Measuring whole processes: wall time, CPU time and peak memory, as the operating system accounts for them."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Measured:
    """One finished process and its children.

    Attributes:
      seconds: wall time, start-up included.
      cpu_seconds: user and system time, all processes together.
      peak_bytes: the largest memory of any one of its processes.
    """

    seconds: float
    cpu_seconds: float
    peak_bytes: int


def measure(command: list[str], log: Path, environment: dict[str, str] | None = None) -> Measured:
    """Runs a command to its end; its output goes to the file `log`.

    Raises:
      RuntimeError: where it fails, with the end of its output.
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
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
