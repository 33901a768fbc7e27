"""Splits, in the format of docs/dataset-format.md, of a language that a model learns in seconds."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

MAX_LENGTH = 16
SPECIAL_TOKENS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
WORDS = 45


def sequences(count: int, seed: int) -> np.ndarray:
    """int64[count, MAX_LENGTH]: <s>, words that count up by one from a random start, </s>. Easy to learn: a word
    follows from its neighbours, and is as frequent as any other."""
    start = np.random.default_rng(seed).integers(0, WORDS, size=(count, 1))
    rows = len(SPECIAL_TOKENS) + (start + np.arange(MAX_LENGTH)) % WORDS
    rows[:, 0], rows[:, -1] = 0, 2
    return rows


def write_split(
    folder: Path,
    rows: np.ndarray,
    *,
    tokenizer: Path | None,
    shard_rows: int = 40,
    attention_mask: np.ndarray | None = None,
    position_ids: np.ndarray | None = None,
    segment_ids: np.ndarray | None = None,
    loss_mask: np.ndarray | None = None,
) -> Path:
    """Writes a split: with manifest and statistics if `tokenizer` is given, else only shards."""
    folder.mkdir(parents=True)
    features = {
        "input_ids": rows,
        "attention_mask": attention_mask,
        "position_ids": position_ids,
        "segment_ids": segment_ids,
        "loss_mask": loss_mask,
    }
    features = {name: values for name, values in features.items() if values is not None}
    shards = []
    for shard, first in enumerate(range(0, len(rows), shard_rows)):
        count = min(shard_rows, len(rows) - first)
        path = folder / f"{folder.name}-{shard:05d}-{count}.tfrecord"
        with tf.io.TFRecordWriter(str(path)) as writer:
            for row in range(first, first + count):
                values = {
                    name: tf.train.Feature(int64_list=tf.train.Int64List(value=array[row]))
                    for name, array in features.items()
                }
                writer.write(tf.train.Example(features=tf.train.Features(feature=values)).SerializeToString())
        shards.append({"name": path.name, "records": count, "bytes": path.stat().st_size})
    if tokenizer is not None:
        token_ids = rows if attention_mask is None else rows[attention_mask > 0]
        counts = np.bincount(token_ids.ravel(), minlength=len(SPECIAL_TOKENS) + WORDS)
        (folder / "statistics.json").write_text(json.dumps({"token_counts": counts.tolist()}))
        tokenizer_copy = folder.parent / "tokenizer"
        if not tokenizer_copy.exists():
            shutil.copytree(tokenizer, tokenizer_copy)
        manifest = {
            "format": "tokenmill-dataset",
            "version": 3,
            "split": folder.name,
            "splits": [folder.name],
            "max_length": rows.shape[1],
            "features": sorted(features),
            "num_records": len(rows),
            "shards": shards,
            "fingerprint": hashlib.sha256(rows.tobytes()).hexdigest(),
            "tokenizer": {
                "path": "../tokenizer",
                "sha256": hashlib.sha256((tokenizer / "tokenizer.json").read_bytes()).hexdigest(),
                "vocab_size": len(SPECIAL_TOKENS) + WORDS,
            },
        }
        write_manifest(folder, manifest)
    return folder


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Writes manifest.json with the checksum that docs/dataset-format.md describes."""
    lines = [
        f"  {json.dumps(key)}: {json.dumps(manifest[key])}" for key in sorted(manifest) if key != "checksum"
    ]
    checksum = hashlib.sha256(("{\n" + ",\n".join(lines) + "\n}\n").encode()).hexdigest()
    lines.insert(0, f'  "checksum": "{checksum}"')
    (folder / "manifest.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
