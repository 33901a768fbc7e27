"""Diagnoses faulty shards, before training and when reading them fails."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import tensorflow as tf

from tpu_trainer.data.dataset import Shard, Split
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.support.errors import UsageError

# The exceptions of an input pipeline if a file is damaged, missing, or differs from its name or manifest.
_READ_ERRORS = (tf.errors.DataLossError, tf.errors.InvalidArgumentError, tf.errors.NotFoundError)

# Graph locations that TensorFlow adds to its messages.
_PLACE_IN_TENSORFLOW = re.compile(r"\{\{.*?\}\}\s*|\s*\[Op:.*", re.DOTALL)


def check_records(split: Split, vocabulary: Vocabulary) -> None:
    """Checks the first record of a split. Without a manifest, checks the whole first non-empty shard.

    Raises:
        UsageError: If records differ from the split's description, or contain ids that the tokenizer does not have.
    """
    shard = next(shard for shard in split.shards if shard.rows)
    limit = None if split.manifest is None else 1
    fault = _fault(shard, split, limit=limit, vocab_size=vocabulary.size)
    if fault is not None:
        raise UsageError(fault)


@contextmanager
def diagnose_read_errors(
    split_shards: Iterable[tuple[Split, Shard]], vocab_size: int | None = None
) -> Iterator[None]:
    """Converts errors of an input pipeline to UsageErrors that name the shard and the record.

    After an error, the candidate shards are read in full, one after the other, to find the fault. If none has a
    fault, the original error is raised.

    Args:
        split_shards: The shards that the error may come from, with their splits.
        vocab_size: Ids must be below it; None: they were not checked.
    """
    try:
        yield
    except _READ_ERRORS as error:
        for split, shard in split_shards:
            fault = _fault(shard, split, vocab_size=vocab_size)
            if fault is not None:
                raise UsageError(fault) from error
        raise


def _fault(
    shard: Shard, split: Split, *, limit: int | None = None, vocab_size: int | None = None
) -> str | None:
    """Describes the first fault in a shard, or in its first `limit` records; None if there is none."""
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
        return f"{shard.path}: {found} records, but its name or the manifest specifies {shard.rows}; {remedy}"
    return None


def _record_fault(record: bytes, split: Split, vocab_size: int | None) -> str | None:
    try:
        features = tf.train.Example.FromString(record).features.feature
    except Exception as error:  # the class of protobuf's exception depends on its implementation
        return f"is not a tf.Example ({error})"
    for name in sorted(split.features):
        if name not in features:
            return f"has no {name}, only {', '.join(sorted(features))}"
        length = len(features[name].int64_list.value)
        if length != split.max_length:
            source = "other records" if split.manifest is None else "the manifest"
            return f"has {length} values in {name}, but max_length is {split.max_length} in {source}"
    if vocab_size is not None:
        ids = np.array(features["input_ids"].int64_list.value)
        if ids.min() < 0 or ids.max() >= vocab_size:
            wrong = int(ids.min() if ids.min() < 0 else ids.max())
            return (
                f"contains the id {wrong}, but the tokenizer has {vocab_size} tokens: it is not the one that "
                f"{split.path} was prepared with; give the right one with --data.tokenizer"
            )
    return None
