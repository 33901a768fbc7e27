"""Long work shows its elapsed time on a terminal, and nothing in a file or pipe."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import termios
import time
from collections.abc import Callable, Iterator

import pytest
from tqdm import tqdm

from tokenmill_reader.console import elapsed as module
from tokenmill_reader.console.elapsed import elapsed, ticking


@contextlib.contextmanager
def terminal() -> Iterator[Callable[[], str]]:
    """Makes stderr a terminal in this context; yields a function that returns what it has shown."""
    master, slave = os.openpty()
    termios.tcsetwinsize(slave, (40, 120))
    os.set_blocking(master, False)

    def read_terminal() -> str:
        try:
            return os.read(master, 1 << 16).decode()
        except BlockingIOError:
            return ""

    with os.fdopen(slave, "w", buffering=1) as stream, contextlib.redirect_stderr(stream):
        yield read_terminal
    os.close(master)


def waits_for(pattern: str, read_terminal: Callable[[], str]) -> str:
    """Returns what is shown until the pattern is, however busy the machine is."""
    text, end = "", time.monotonic() + 60
    while not re.search(pattern, text):
        assert time.monotonic() < end, text
        time.sleep(0.05)
        text += read_terminal()
    return text


def test_long_work_shows_its_time_in_a_line_that_vanishes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOMENT", 0.1)
    with terminal() as read_terminal:
        with elapsed("compiling"):
            waits_for(r"compiling \[00:\d\d\]", read_terminal)
        waits_for(r"\r +\r$", read_terminal)  # the terminal may pass it on in pieces


def test_short_work_shows_nothing() -> None:
    with terminal() as read_terminal:
        with elapsed("compiling"):
            pass
        assert read_terminal() == ""


def test_the_time_of_a_bar_advances_while_no_step_ends() -> None:
    with (
        terminal() as read_terminal,
        tqdm(total=10, desc="fit", disable=not sys.stderr.isatty()) as bar,
        ticking(bar),
    ):
        waits_for(r"0/10 \[00:0[1-9]<\?", read_terminal)


def test_a_file_or_pipe_gets_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "MOMENT", 0.0)
    with tqdm(total=10, disable=not sys.stderr.isatty()) as bar, elapsed("compiling"), ticking(bar):
        time.sleep(1.3)
    assert capsys.readouterr() == ("", "")
