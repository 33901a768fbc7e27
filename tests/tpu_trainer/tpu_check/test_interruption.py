"""Signals while the main thread does not return to Python, as while the compiler runs."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

# Processes that a shell starts in the background, and what they start, ignore SIGINT.
_SIGINT = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
"""
# Locks a mutex twice. Unlike sleep(), that continues to wait after a signal.
_BUSY = """
import ctypes, pathlib, sys
from tpu_trainer.tpu_check.interruption import ending_at_once
lock, mutex = ctypes.CDLL(None).pthread_mutex_lock, ctypes.create_string_buffer(64)
with ending_at_once(pathlib.Path(sys.argv[1]).unlink):
    lock(mutex)
    print("busy", flush=True)
    lock(mutex)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_compilation_at_once_and_deletes_its_files(tmp_path: Path, number: int) -> None:
    dump = tmp_path / "dump"
    dump.touch()
    process = subprocess.Popen(
        [sys.executable, "-c", _SIGINT + _BUSY, str(dump)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout.readline() == "busy\n"
        process.send_signal(number)
        _, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 128 + number and not dump.exists()
    assert ("interrupted" in stderr) == (number == signal.SIGINT)


def test_afterwards_signals_are_handled_as_before() -> None:
    code = _SIGINT + (
        "import os\n"
        "from tpu_trainer.tpu_check.interruption import ending_at_once\n"
        "with ending_at_once():\n"
        "    pass\n"
        "try:\n"
        "    signal.raise_signal(signal.SIGINT)\n"
        "except KeyboardInterrupt:\n"
        "    print(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, len(os.listdir('/proc/self/fd')))\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "True 4\n"  # the standard streams, and the folder that is listed
