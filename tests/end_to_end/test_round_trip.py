"""No token is lost or added: compares the records of a dataset, in order, with HF's encoding of every document."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from beam_pipeline.rows.routing import ShardLayout


def documents(path: Path) -> Iterator[tuple[int, str]]:
    """Yields every document of a text or jsonl file with the offset of its line, by the simplest possible code."""
    offset = 0
    for line in path.read_bytes().split(b"\n"):
        text = line.removesuffix(b"\r").decode("utf-8-sig" if offset == 0 else "utf-8")
        if path.suffix == ".jsonl" and text:
            text = json.loads(text)["text"]
        if text.strip():
            yield offset, text
        offset += len(line) + 1


def records(split: Path) -> tuple[np.ndarray, np.ndarray]:
    """Reads all shards with TensorFlow, in order: input_ids and attention_mask, int64 [records, max_length]."""
    import tensorflow as tf

    manifest = json.loads((split / "manifest.json").read_text())
    shape = tf.io.FixedLenFeature((manifest["max_length"],), tf.int64)
    ids, masks = [], []
    for shard in manifest["shards"]:
        serialized = list(tf.data.TFRecordDataset(str(split / shard["name"])).as_numpy_iterator())
        assert len(serialized) == shard["records"]
        parsed = tf.io.parse_example(serialized, {"input_ids": shape, "attention_mask": shape})
        ids.append(parsed["input_ids"].numpy())
        masks.append(parsed["attention_mask"].numpy())
    return np.concatenate(ids), np.concatenate(masks)


def in_order(split: Path, rows: np.ndarray) -> np.ndarray:
    """Inverts the shuffle: returns the rows in the order of their ranks."""
    manifest = json.loads((split / "manifest.json").read_text())
    layout = ShardLayout(
        manifest["split"], len(rows), manifest["shard_size"], manifest["config"]["shuffle"], manifest["seed"]
    )
    place = np.arange(len(rows))
    ordered = np.empty_like(rows)
    ordered[layout.rank(place // layout.shard_size, place % layout.shard_size)] = rows
    return ordered


@pytest.mark.parametrize("name", ["generated_dataset/train", "wikitext_dataset/validation"])
def test_records_hold_the_tokens_of_every_document(name: str, request: pytest.FixtureRequest) -> None:
    from transformers import AutoTokenizer

    fixture, _, split_name = name.partition("/")
    dataset: Path = request.getfixturevalue(fixture)
    split = dataset / split_name
    manifest = json.loads((split / "manifest.json").read_text())
    tokenizer = AutoTokenizer.from_pretrained(dataset / "tokenizer", split_special_tokens=True)
    units = [json.loads(line) for line in (split / "units.jsonl").read_text().splitlines()]
    length = manifest["max_length"]

    rows, tails, count = [], [], 0
    for unit in units[:-1]:
        texts = [
            text
            for part, start, end in unit["parts"]
            for offset, text in documents(Path(unit["root"] + part))
            if start <= offset < end
        ]
        count += len(texts)
        encoded = tokenizer(texts, verbose=False)["input_ids"] if texts else []
        stream = [token for ids in encoded for token in ids]
        cut = len(stream) // length * length
        assert unit["rows"] == cut // length
        rows += stream[:cut]
        tails += stream[cut:]
    expected = np.array(rows + tails)
    padding = -len(expected) % length

    ids, masks = records(split)
    assert in_order(split, ids).ravel().tolist() == [*expected, *[tokenizer.pad_token_id] * padding]
    assert in_order(split, masks).ravel().tolist() == [1] * len(expected) + [0] * padding
    assert len(units) > 10
    assert len(manifest["shards"]) > 3
    assert manifest["totals"]["documents"] == count
    assert manifest["totals"]["tokens"] == len(expected)
    assert manifest["totals"]["padding"] == padding
