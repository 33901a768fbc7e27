"""Fuzz cases, the same in every run: `make test` runs a few that have every fault, and `make fuzz CASES=1000` more."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.cases import BEFORE, FAULTS, make_case
from tests.fuzz.tokenizers_for_fuzz import TOKENIZERS
from tokenmill_reader.format.names import DOCUMENT_FORMATS, ROW_FORMATS

ROOT = Path(__file__).resolve().parents[2]
SMALL = (14, 95, 127, 148, 261, 291, 310, 319, 336, 373, 383)
REMOVED_BY = {
    "pii",
    "tests.fuzz.curation:by_length",
    "decontamination",
    "paragraphs",
    "exact",
    "near",
    "longest",
    "restore",
}


def test_a_run_leaves_a_whole_dataset_or_none_and_nothing_else_changes():
    cases = [make_case(0, number) for number in SMALL]
    assert {case.fault for case in cases} == set(FAULTS)
    assert {case.before for case in cases} == set(BEFORE)
    assert {case.tokenizer for case in cases} == set(TOKENIZERS)
    assert {name for case in cases for name in case.curation.features} == REMOVED_BY
    assert {case.output_format for case in cases} == {*ROW_FORMATS, *DOCUMENT_FORMATS}
    assert f"{len(SMALL)} cases, 0 of them wrong" in fuzz("--only", *map(str, SMALL))


@pytest.mark.wide
@pytest.mark.parametrize("first", range(0, 64, 8))
def test_further_cases(first: int):
    assert "8 cases, 0 of them wrong" in fuzz("--cases", "8", "--first", str(first))


@pytest.mark.wide
def test_prepare_beside_a_convert_of_the_same_data_has_the_reference_that_the_case_began_with():
    assert "1 cases, 0 of them wrong" in fuzz("--seed", "77123", "--only", "5")


def fuzz(*options: str) -> str:
    """Runs cases in a process of their own, which must have no threads, since it forks. Returns its output."""
    words = [sys.executable, "-m", "tests.fuzz", *options]
    result = subprocess.run(words, cwd=ROOT, env=os.environ, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr[-2000:]
    return result.stdout
