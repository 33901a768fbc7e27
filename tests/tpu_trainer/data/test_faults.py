"""The messages about shards that are damaged or do not match the dataset."""

from __future__ import annotations

import gc
import gzip
import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.tpu_trainer.tiny import sequences, write_manifest, write_split
from tokenmill_reader import Dataset, Mixture
from tpu_trainer.data.batches import EvaluationRows, NumberedBatches, RowStream, check_records
from tpu_trainer.data.dataset import open_split
from tpu_trainer.data.python_calls import PythonCalls
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.support.errors import UsageError


@pytest.fixture
def folder(tmp_path: Path, tokenizer_folder: Path) -> Path:
    """90 rows in shards of 40."""
    return write_split(tmp_path / "train", sequences(90, 3), tokenizer=tokenizer_folder)


@pytest.fixture
def split(folder: Path) -> Dataset:
    return open_split(str(folder))


def source_of(split: Dataset, vocabulary: Vocabulary, purpose: str) -> NumberedBatches:
    if purpose == "validation":
        return EvaluationRows(split, batch_size=10, vocabulary=vocabulary)
    return RowStream(
        data=Mixture([split], [1]), batch_size=10, seed=0, window_shards=1, vocab_size=vocabulary.size
    )


def read(source: NumberedBatches) -> None:
    """Reads all rows as the input pipelines do."""
    with source.errors_of_reading():
        list(source.batches()(tf.distribute.InputContext()).take(9))


def damage(folder: Path) -> str:
    """Changes a byte of a value in the second shard's 11th record, which no size reveals."""
    path = folder / "train-00001-40.tfrecord"
    data = bytearray(path.read_bytes())
    data[len(data) * 10 // 40 + 45] ^= 1
    path.write_bytes(data)
    return r"train-00001-40.tfrecord: record 10: the checksum of its data is wrong"


def damage_a_length(folder: Path) -> str:
    path = folder / "train-00001-40.tfrecord"
    data = bytearray(path.read_bytes())
    data[len(data) * 10 // 40] ^= 1
    path.write_bytes(data)
    return r"train-00001-40.tfrecord: record 10 at byte \d+: the checksum of the record's length is wrong"


def cut(folder: Path) -> str:
    path = folder / "train-00001-40.tfrecord"
    path.write_bytes(path.read_bytes()[:-5])
    return r"train-00001-40.tfrecord: \d+ bytes, but the manifest specifies \d+"


def remove(folder: Path) -> str:
    (folder / "train-00002-10.tfrecord").unlink()
    return r"train-00002-10.tfrecord: missing"


def test_a_pipeline_ends_after_several_errors(
    split: Dataset, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, may_raise = PythonCalls(), threading.Event()
    monkeypatch.setattr("tpu_trainer.data.batches._CALLS", calls)
    source = source_of(split, vocabulary, "training")

    def fail(number: int, slots: np.ndarray | None) -> None:
        if number:
            may_raise.wait(2)
        raise UsageError(f"batch {number}")

    monkeypatch.setattr(source, "read", fail)
    with pytest.raises(UsageError, match="batch 0"):
        read(source)
    gc.collect()
    may_raise.set()
    end = threading.Thread(target=calls.close, daemon=True)
    end.start()
    end.join(60)
    assert not end.is_alive()  # else the pipeline's thread waits for itself


@pytest.mark.parametrize("inflict", [damage, damage_a_length, cut, remove])
@pytest.mark.parametrize("purpose", ["training", "validation"])
def test_errors_of_reading_name_the_shard(
    folder: Path, split: Dataset, vocabulary: Vocabulary, inflict: Callable[[Path], str], purpose: str
) -> None:
    message = inflict(folder)
    with pytest.raises(UsageError, match=message + r".*copy or prepare the dataset again"):
        read(source_of(split, vocabulary, purpose))


def shorten_rows(path: Path) -> str:
    with tf.io.TFRecordWriter(str(path)) as writer:
        for row in np.full([10, 8], 7):
            feature = tf.train.Feature(int64_list=tf.train.Int64List(value=row))
            features = tf.train.Features(feature={"input_ids": feature})
            writer.write(tf.train.Example(features=features).SerializeToString())
    return r"train-00002-10.tfrecord: record \d: has 8 values in input_ids, not 16"


def write_something_else(path: Path) -> str:
    with tf.io.TFRecordWriter(str(path)) as writer:
        for _ in range(10):
            writer.write(b"letters")
    return r"train-00002-10.tfrecord: record \d: is not a tf.train.Example"


def compress(path: Path) -> str:
    path.write_bytes(gzip.compress(path.read_bytes()))
    return r"train-00002-10.tfrecord: record 0 at byte 0: compressed by gzip"


@pytest.mark.parametrize("inflict", [shorten_rows, write_something_else, compress])
def test_shards_without_a_manifest_of_another_form(
    folder: Path, vocabulary: Vocabulary, inflict: Callable[[Path], str]
) -> None:
    (folder / "manifest.json").unlink()
    message = inflict(folder / "train-00002-10.tfrecord")
    with pytest.raises(UsageError, match=message):
        read(source_of(open_split(str(folder)), vocabulary, "training"))


def test_other_errors_pass(split: Dataset, vocabulary: Vocabulary) -> None:
    source = source_of(split, vocabulary, "training")
    with pytest.raises(tf.errors.InvalidArgumentError, match="mine"), source.errors_of_reading():
        raise tf.errors.InvalidArgumentError(None, None, "mine")
    source.rows = None  # a bug
    with pytest.raises(TypeError, match="not callable"):
        read(source)


@pytest.mark.parametrize("wrong_id", [10**9, 2**33 + 5, -1, "vocab_size"])
@pytest.mark.parametrize("purpose", ["training", "validation"])
def test_an_id_that_the_tokenizer_does_not_have(
    tmp_path: Path, vocabulary: Vocabulary, wrong_id: int | str, purpose: str
) -> None:
    rows = sequences(90, 3)
    rows[57, 4] = vocabulary.size if wrong_id == "vocab_size" else wrong_id
    folder = write_split(tmp_path / "train", rows, tokenizer=None)
    split = open_split(str(folder))
    check_records(split, vocabulary)
    message = r"train-00001-40.tfrecord: record 17(: has values in| contains the id .* but the tokenizer)"
    with pytest.raises(UsageError, match=message):
        read(source_of(split, vocabulary, purpose))


def test_a_manifest_with_another_length_or_feature(folder: Path, vocabulary: Vocabulary) -> None:
    check_records(open_split(str(folder)), vocabulary)
    manifest = json.loads((folder / "manifest.json").read_text())
    for changes, message in (
        ({"max_length": 8}, r"train-00000-40.tfrecord: record 0: has 16 values in input_ids, not 8"),
        ({"features": ["input_ids", "segment_ids"]}, r"record 0: has no segment_ids, only 'input_ids'"),
    ):
        write_manifest(folder, manifest | changes)
        with pytest.raises(UsageError, match=message):
            check_records(open_split(str(folder)), vocabulary)


def test_shards_without_a_manifest_of_a_larger_tokenizer(folder: Path, vocabulary: Vocabulary) -> None:
    (folder / "manifest.json").unlink()
    shards_only = open_split(str(folder))
    check_records(shards_only, vocabulary)
    with pytest.raises(UsageError, match=r"record \d+ contains the id 49, but the tokenizer has 49 tokens"):
        check_records(shards_only, replace(vocabulary, size=49))


@pytest.mark.parametrize("named_count", [39, 41])
def test_shards_without_a_manifest_with_another_count(
    folder: Path, vocabulary: Vocabulary, named_count: int
) -> None:
    (folder / "manifest.json").unlink()
    (folder / "train-00000-40.tfrecord").rename(folder / f"train-00000-{named_count}.tfrecord")
    message = rf"train-00000-{named_count}.tfrecord: has .*its name or the manifest specifies"
    with pytest.raises(UsageError, match=message):
        check_records(open_split(str(folder)), vocabulary)
