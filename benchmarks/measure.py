"""Measures wall time, CPU time and peak memory of processes, as reported by the operating system."""

from __future__ import annotations

import os
import subprocess
import tempfile
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
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**environment_with_bytecode(), **(environment or {})},
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{log.read_text()[-2000:]}")
    return Measured(time.monotonic() - began, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def environment_with_bytecode() -> dict[str, str]:
    """Returns this process's environment, in which Python caches bytecode, as it does for users.

    Some containers turn that off, and then `import apache_beam` takes 2.6 times as long.
    """
    environment = dict(os.environ)
    if environment.pop("PYTHONDONTWRITEBYTECODE", None):
        environment.setdefault("PYTHONPYCACHEPREFIX", str(Path(tempfile.gettempdir(), "tokenmill-bytecode")))
    return environment


def table(header: list[str], rows: list[list[str]]) -> str:
    """Formats a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
