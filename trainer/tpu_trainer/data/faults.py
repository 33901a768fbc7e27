"""What is wrong with a dataset's files: said before the first step where a look tells, else when reading fails."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import tensorflow as tf

from tpu_trainer.data.dataset import Shard, Split
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.errors import UsageError

# What an input pipeline raises for a file that is damaged, gone, or not what its name or manifest says.
_READ_ERRORS = (tf.errors.DataLossError, tf.errors.InvalidArgumentError, tf.errors.NotFoundError)

# What its messages have around what they say.
_PLACE_IN_TENSORFLOW = re.compile(r"\{\{.*?\}\}\s*|\s*\[Op:.*", re.DOTALL)


def check_records(split: Split, vocabulary: Vocabulary) -> None:
    """UsageError where records are not what the split promises, or hold ids that the tokenizer does not have.

    Where a manifest vouches for the rest, the first record is looked at; else the first shard that holds one.
    """
    shard = next(shard for shard in split.shards if shard.rows)
    limit = None if split.manifest is None else 1
    fault = _fault(shard, split, limit=limit, vocab_size=vocabulary.size)
    if fault is not None:
        raise UsageError(fault)


@contextmanager
def explained(split_shards: Iterable[tuple[Split, Shard]]) -> Iterator[None]:
    """Turns an error of reading into a UsageError that names the shard and the record.

    Args:
        split_shards: Where the error may come from, with the split that each is of; read to their ends, one after the
            other, if there is one. If nothing is found there, the error is passed on.
    """
    try:
        yield
    except _READ_ERRORS as error:
        for split, shard in split_shards:
            fault = _fault(shard, split)
            if fault is not None:
                raise UsageError(fault) from error
        raise


def _fault(
    shard: Shard, split: Split, *, limit: int | None = None, vocab_size: int | None = None
) -> str | None:
    """What is wrong with the first `limit` records of a shard, or with all of it; None: nothing."""
    records = tf.data.TFRecordDataset(shard.path)
    if limit is not None:
        records = records.take(limit)
    remedy = "prepare or copy the dataset again"
    found = 0
    try:
        for record in records.as_numpy_iterator():
            wrong = _record_fault(record, split, vocab_size)
            if wrong is not None:
                return f"{shard.path}: record {found} {wrong}"
            found += 1
    except _READ_ERRORS as error:
        said = _PLACE_IN_TENSORFLOW.sub("", error.message)
        return f"{shard.path}: cannot be read after {found} records ({said}); {remedy}"
    if found != (shard.rows if limit is None else min(limit, shard.rows)):
        return f"{shard.path}: {found} records where its name or the manifest says {shard.rows}; {remedy}"
    return None


def _record_fault(record: bytes, split: Split, vocab_size: int | None) -> str | None:
    try:
        features = tf.train.Example.FromString(record).features.feature
    except Exception as error:  # protobuf's own, whose class depends on its implementation
        return f"is not a tf.Example ({error})"
    for name in sorted(split.features):
        if name not in features:
            return f"has no {name}, only {', '.join(sorted(features))}"
        length = len(features[name].int64_list.value)
        if length != split.max_length:
            source = "other records" if split.manifest is None else "the manifest"
            return f"has {length} values in {name} where max_length is {split.max_length} by {source}"
    if vocab_size is not None:
        ids = np.array(features["input_ids"].int64_list.value)
        if ids.min() < 0 or ids.max() >= vocab_size:
            wrong = int(ids.min() if ids.min() < 0 else ids.max())
            return (
                f"holds the id {wrong}, but the tokenizer has {vocab_size} tokens: it is not the one that {split.path} "
                "was made with; name that one with --data.tokenizer"
            )
    return None
