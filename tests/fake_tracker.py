"""A module in place of Trackio, which writes what it gets to a file, for the processes of trackers."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

import tokenmill_reader
from tokenmill_reader.tracking import trackers

_READER = Path(tokenmill_reader.__file__).parents[1]
_MODULE = """
import json, os, sys, time
def _write(*what):
    with open({log!r}, "a") as file:
        file.write(json.dumps(what) + "\\n")
def init(*, name, config, resume, **options):
    _write("init", name, config, resume)
def log(figures, step):
    _write("log", step, figures)
def finish():
    _write("finish")
"""


class FakeTracker:
    """The module, which `code` at its end can break."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder / "fake"
        self._folder.mkdir()
        self._log = folder / "calls.jsonl"
        self.write("")
        monkeypatch.setattr(trackers, "SECONDS_TO_FINISH", 600.0)  # a busy machine must not fail a test
        monkeypatch.syspath_prepend(str(self._folder))
        before = os.environ.get("PYTHONPATH", "")
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(self._folder), str(_READER), before]))

    def write(self, code: str) -> None:
        (self._folder / "trackio.py").write_text(_MODULE.format(log=str(self._log)) + code)

    def calls(self) -> list[list[Any]]:
        """Returns the calls so far: init with name, parameters and resume; log with step and figures; finish."""
        if not self._log.exists():
            return []
        return [json.loads(line) for line in self._log.read_text().splitlines()]

    def calls_until(self, name: str) -> list[list[Any]]:
        """Waits for a call."""
        while not any(call[0] == name for call in self.calls()):
            time.sleep(0.05)
        return self.calls()
