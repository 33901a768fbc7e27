"""How notebooks show datasets, mixtures and orders."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from tests.tokenmill_reader.written import write_split
from tokenmill_reader import Dataset, Mixture, Order, notebooks

IDS = np.array([[0, 1, 2, 0], [1, 1, 3, 3], [2, 0, 0, 0], [0, 0, 0, 0]])
MASK = np.array([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 1], [1, 1, 1, 1]])


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return Dataset.open(write_split(tmp_path / "<b>&" / "train", {"attention_mask": MASK, "input_ids": IDS}))


def tokenizer_json(words: list[str]) -> bytes:
    vocab = {word: index for index, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token=words[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer.to_str().encode()


def test_a_repr_has_the_path_split_rows_and_types_of_the_columns(dataset: Dataset) -> None:
    columns = "{attention_mask: int32[4], input_ids: int32[4]}"
    assert repr(dataset) == f"Dataset({dataset.path!r}, split 'train', 4 rows of {columns})"
    order = Order(Mixture([dataset], [1]), seed=3, batch_size=2)
    assert repr(order) == f"Order({Mixture([dataset], [1])!r}, seed=3, batch_size=2, window=16)"
    assert repr(Order(dataset, batch_size=2)).startswith("Order(Dataset(")


def test_a_notebook_shows_the_first_rows_without_padding_and_escapes_the_path(dataset: Dataset) -> None:
    shown = dataset._repr_html_()
    assert "&lt;b&gt;&amp;" in shown and "<b>" not in shown
    assert shown.count("<tr>") == 1 + notebooks.ROWS
    assert "<td>1</td><td>2</td>" in shown and ">1 1</td>" in shown
    assert shown in Mixture([dataset], [1])._repr_html_()


def test_texts_are_shown_with_the_tokenizer_and_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    data = tokenizer_json(["<script>", "\u202eab", "cd", "pad"])
    decode = notebooks.make_decode(data)
    rows = [(0, {"input_ids": IDS[0]})]
    shown = notebooks.rows_table("", rows, decode)
    assert "&lt;script&gt; \\u202eab cd &lt;script&gt;" in shown
    assert notebooks.make_decode(None) is None
    assert notebooks.make_decode(b"{}") is None
    assert notebooks.make_decode(json.dumps([1]).encode() + b"\xff") is None
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert notebooks.make_decode(data) is None


def test_a_damaged_dataset_is_shown_with_its_defect(dataset: Dataset) -> None:
    path = next(Path(dataset.path).glob("*.tfrecord"))
    path.write_bytes(path.read_bytes()[:-3])
    assert "bytes, but the manifest specifies" in Dataset.open(dataset.path)._repr_html_()
