"""A few dozen fuzz cases, the same in every run; `make fuzz CASES=1000` runs more."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("first", (0, 16))
def test_a_run_leaves_a_whole_dataset_or_none_and_nothing_else_changes(first: int):
    assert "16 cases, 0 of them wrong" in fuzz("--cases", "16", "--first", str(first))


def test_prepare_beside_a_convert_of_the_same_data_has_the_reference_that_the_case_began_with():
    assert "1 cases, 0 of them wrong" in fuzz("--seed", "77123", "--only", "5")


def fuzz(*options: str) -> str:
    """Runs cases in a process of their own, which must have no threads, since it forks. Returns its output."""
    words = [sys.executable, "-m", "tests.fuzz", *options]
    result = subprocess.run(words, cwd=ROOT, env=os.environ, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr[-2000:]
    return result.stdout
