"""What is said of shards that are not what they should be."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.tpu_trainer.tiny import sequences, write_manifest, write_split
from tpu_trainer.data.batches import RowStream, evaluation_batches
from tpu_trainer.data.dataset import Split, open_split
from tpu_trainer.data.faults import check_records, diagnose_read_errors
from tpu_trainer.data.mixture import PERIOD, Mixture
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.support.errors import UsageError


@pytest.fixture
def split(tmp_path: Path, tokenizer_folder: Path) -> Split:
    """90 rows in shards of 40."""
    return open_split(str(write_split(tmp_path / "train", sequences(90, 3), tokenizer=tokenizer_folder)))


def read(split: Split) -> None:
    """Reads all records as the input pipelines do."""
    with diagnose_read_errors((split, shard) for shard in split.shards):
        for shard in split.shards:
            specification = {"input_ids": tf.io.FixedLenFeature([split.max_length], tf.int64)}
            for record in tf.data.TFRecordDataset(shard.path):
                tf.io.parse_example([record], specification)


def damage(split: Split) -> str:
    """Changes a byte in the second shard's 11th record, which no size betrays."""
    path = Path(split.shards[1].path)
    data = bytearray(path.read_bytes())
    data[len(data) * 10 // 40 + 20] ^= 0xFF
    path.write_bytes(data)
    return r"train-00001-40.tfrecord: cannot be read after 10 records \(corrupted record at \d+\)"


def cut(split: Split) -> str:
    path = Path(split.shards[1].path)
    path.write_bytes(path.read_bytes()[:-5])
    return r"train-00001-40.tfrecord: cannot be read after 39 records"


def remove(split: Split) -> str:
    Path(split.shards[2].path).unlink()
    return r"train-00002-10.tfrecord: cannot be read after 0 records"


def shorten_rows(split: Split) -> str:
    rows = np.full([10, 8], 7)
    with tf.io.TFRecordWriter(split.shards[2].path) as writer:
        for row in rows:
            feature = tf.train.Feature(int64_list=tf.train.Int64List(value=row))
            features = tf.train.Features(feature={"input_ids": feature})
            writer.write(tf.train.Example(features=features).SerializeToString())
    return (
        r"train-00002-10.tfrecord: record 0 has 8 values in input_ids, but max_length is 16 in the manifest"
    )


def write_something_else(split: Split) -> str:
    with tf.io.TFRecordWriter(split.shards[2].path) as writer:
        writer.write(b"letters")
    return r"train-00002-10.tfrecord: record 0 is not a tf.Example"


@pytest.mark.parametrize("harm", [damage, cut, remove, shorten_rows, write_something_else])
def test_errors_of_reading_name_the_shard(split: Split, harm: Callable[[Split], str]) -> None:
    read(split)
    message = harm(split)
    with pytest.raises(UsageError, match=message):
        read(split)


def test_other_errors_pass(split: Split) -> None:
    with (
        pytest.raises(tf.errors.InvalidArgumentError, match="mine"),
        diagnose_read_errors((split, shard) for shard in split.shards),
    ):
        raise tf.errors.InvalidArgumentError(None, None, "mine")


@pytest.mark.parametrize("wrong", [10**9, 2**33 + 5, -1, "vocab_size"])
@pytest.mark.parametrize("use", ["training", "validation"])
def test_an_id_that_the_tokenizer_does_not_have(
    tmp_path: Path, tokenizer_folder: Path, vocabulary: Vocabulary, wrong: int | str, use: str
) -> None:
    rows = sequences(90, 3)
    rows[57, 4] = vocabulary.size if wrong == "vocab_size" else wrong
    folder = write_split(tmp_path / "train", rows, tokenizer=None)
    split = open_split(str(folder), tokenizer=str(tokenizer_folder))
    check_records(split, vocabulary)
    stream = RowStream(
        data=Mixture(splits=(split,), shares=(PERIOD,)),
        batch_size=10,
        seed=0,
        window_shards=1,
        vocab_size=vocabulary.size,
    )
    batches = (
        stream.batches(0)
        if use == "training"
        else evaluation_batches(split, batch_size=10, vocabulary=vocabulary)
    )
    with (
        pytest.raises(
            UsageError, match=r"train-00001-40.tfrecord: record 17 contains the id .* but the tokenizer has"
        ),
        diagnose_read_errors(((split, shard) for shard in split.shards), vocabulary.size),
    ):
        list(batches(tf.distribute.InputContext()).take(9))


def test_a_manifest_with_another_length(split: Split, vocabulary: Vocabulary) -> None:
    check_records(split, vocabulary)
    manifest = json.loads(Path(split.path, "manifest.json").read_text())
    write_manifest(Path(split.path), manifest | {"max_length": 8})
    message = (
        r"train-00000-40.tfrecord: record 0 has 16 values in input_ids, but max_length is 8 in the manifest"
    )
    with pytest.raises(UsageError, match=message):
        check_records(open_split(split.path), vocabulary)


def test_a_manifest_with_another_feature(split: Split, vocabulary: Vocabulary) -> None:
    promising = replace(split, features=split.features | {"segment_ids"})
    with pytest.raises(UsageError, match=r"record 0 has no segment_ids, only input_ids"):
        check_records(promising, vocabulary)


def test_bare_shards_of_a_larger_tokenizer(split: Split, vocabulary: Vocabulary) -> None:
    Path(split.path, "manifest.json").unlink()
    bare = open_split(split.path)
    check_records(bare, vocabulary)
    with pytest.raises(UsageError, match=r"record \d+ contains the id 49, but the tokenizer has 49 tokens"):
        check_records(bare, replace(vocabulary, size=49))


def test_bare_shards_with_another_count(split: Split, vocabulary: Vocabulary) -> None:
    Path(split.path, "manifest.json").unlink()
    path = Path(split.shards[0].path)
    path.rename(path.with_name("train-00000-41.tfrecord"))
    with pytest.raises(
        UsageError, match=r"train-00000-41.tfrecord: 40 records, but its name .* specifies 41"
    ):
        check_records(open_split(split.path), vocabulary)
