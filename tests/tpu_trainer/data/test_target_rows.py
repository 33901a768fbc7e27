"""Rows with given targets, and files of minimal pairs."""

from __future__ import annotations

import doctest
import json
from pathlib import Path

import numpy as np
import pytest

from tpu_trainer.data import target_rows
from tpu_trainer.data.minimal_pairs import read_pairs
from tpu_trainer.data.target_rows import PaddedRows, TargetRow, causal_row
from tpu_trainer.support.errors import UsageError


def test_worked_examples_give_what_they_show() -> None:
    failures, examples = doctest.testmod(target_rows)
    assert examples and not failures


def test_rows_are_padded_without_targets() -> None:
    rows = [causal_row([0], [5, 6], max_length=4), TargetRow(inputs=np.array([7]), targets=np.array([8]))]
    values = PaddedRows(rows, length=3, pad_id=1)[np.array([1, 0])]
    assert {name: value.tolist() for name, value in values.items()} == {
        "input_ids": [[7, 1, 1], [0, 5, 1]],
        "attention_mask": [[1, 0, 0], [1, 1, 0]],
        "targets": [[8, -1, -1], [5, 6, -1]],
    }


def test_files_of_minimal_pairs_and_lines_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    with pytest.raises(UsageError, match=r"pairs\.jsonl: no such file"):
        read_pairs(str(path))
    path.write_text("\n")
    with pytest.raises(UsageError, match=r"pairs\.jsonl: no minimal pairs"):
        read_pairs(str(path))
    pair = {"sentence_good": "Cats sleep.", "sentence_bad": "Cats sleeps.", "field": "syntax"}
    path.write_text("\n".join(map(json.dumps, [pair, {**pair, "sentence_good": "Dogs sleep."}])))
    assert read_pairs(str(path), limit=1) == [("Cats sleep.", "Cats sleeps.")]
    for line in (
        '{"sentence_good": "a"',
        "[1]",
        json.dumps(pair | {"sentence_bad": ""}),
        '{"sentence_good": "a"}',
    ):
        path.write_text(json.dumps(pair) + "\n" + line)
        with pytest.raises(UsageError, match=r"pairs\.jsonl, line 2: not (JSON|a minimal pair)"):
            read_pairs(str(path))
    path.write_bytes(b'{"sentence_good": "\xff"}')
    with pytest.raises(UsageError, match=r"line 1: not JSON"):
        read_pairs(str(path))
