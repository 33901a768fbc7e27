"""Ctrl-C in a process whose main thread may be in native code."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

# Processes that a shell starts in the background, and what they start, ignore SIGINT.
_BEGIN = """
import ctypes, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from tokenmill_reader.console.interrupts import prompt_interrupts
def busy():  # locks a mutex twice; unlike sleep(), that continues to wait after a signal
    lock, mutex = ctypes.CDLL(None).pthread_mutex_lock, ctypes.create_string_buffer(64)
    lock(mutex)
    print("busy", flush=True)
    lock(mutex)
"""
_NATIVE = """
with prompt_interrupts("fit"):
    busy()
"""
_PYTHON = """
with prompt_interrupts("fit"):
    try:
        print("busy", flush=True)
        time.sleep(60)
    except KeyboardInterrupt:
        print("caught", flush=True)
"""
_UNWINDING = """
with prompt_interrupts("fit"):
    try:
        print("busy", flush=True)
        time.sleep(60)
    finally:
        busy()
"""
_OTHER_HANDLER = """
with prompt_interrupts("fit"):
    signal.signal(signal.SIGINT, lambda *_: None)
    print("busy", flush=True)
    time.sleep(2)
    print("handled", flush=True)
"""


@pytest.mark.parametrize(
    ("code", "signals", "outcome"),
    [
        (_NATIVE, 1, (130, "", "fit: interrupted\n")),
        (_PYTHON, 1, (0, "caught\n", "")),
        (_UNWINDING, 2, (130, "", "fit: interrupted\n")),
        (_OTHER_HANDLER, 1, (0, "handled\n", "")),
    ],
)
def test_ctrl_c_ends_a_process_soon(code: str, signals: int, outcome: tuple[int, str, str]) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _BEGIN + code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        for _ in range(signals):
            assert process.stdout.readline() == "busy\n"
            time.sleep(0.3)  # until it is in native code
            process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == outcome
