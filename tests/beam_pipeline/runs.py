"""Helpers of the tests of `prepare`: its command line, the content of an output folder, and a run's processes."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from beam_pipeline.sources.units import WorkUnit
from beam_pipeline.steps.tokenize import TokenizeUnit
from beam_pipeline.verbs.verify import check_dataset

PROGRAM = [sys.executable, "-m", "beam_pipeline", "prepare"]


def arguments(source: Path | str, tokenizer: Path | str, output: Path | str, *options: str) -> list[str]:
    """Returns the arguments of `prepare`."""
    return ["--input", str(source), "--tokenizer", str(tokenizer), "--output", str(output), *options]


def content(folder: Path) -> dict[str, bytes]:
    """Returns the bytes of every file below a folder, by its relative path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def without_manifests(folder: Path) -> dict[str, bytes]:
    """Returns the files of a dataset that do not name its format or source."""
    return {
        name: data for name, data in content(folder).items() if not name.endswith(("manifest.json", ".html"))
    }


def defects(dataset: Path | str) -> list[str]:
    """Returns the defects that `verify` finds in all splits."""
    return [defect for _, split_defects in check_dataset(str(dataset)) for defect in split_defects]


def fail_before_the_manifests(*_: object, **__: object) -> None:
    """Replaces the last step's `commit`, so that a run ends with all its shards and no manifest."""
    raise RuntimeError("stopped before the manifests")


def edit_before_tokenizing(patch: pytest.MonkeyPatch, number: int, edit: Callable[[], object]) -> None:
    """Calls `edit`, which changes an input, before a run tokenizes the unit with this number."""
    tokenize = TokenizeUnit._tokenize

    def edit_first(step: TokenizeUnit, unit: WorkUnit, *arguments: Any) -> Any:
        if unit.index == number:
            edit()
        return tokenize(step, unit, *arguments)

    patch.setattr(TokenizeUnit, "_tokenize", edit_first)


def of_session(leader: int) -> list[int]:
    """Returns the running processes of a session, without zombies."""
    pids = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, session = stat.read_text().rpartition(")")[2].split()[:4]
            if state != "Z" and int(session) == leader:
                pids.append(int(stat.parent.name))
    return pids


def wait_for_the_end(leader: int) -> None:
    """Waits until no process of a session is left; killed ones take a moment to go."""
    deadline = time.monotonic() + 60
    while pids := of_session(leader):
        assert time.monotonic() < deadline, f"processes {pids} are left"
        time.sleep(0.02)
