"""Parquet shards, as other libraries see them."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_pipeline.dataset.records import RecordError
from beam_pipeline.formats.base import RowForm
from beam_pipeline.formats.parquet import Parquet
from tests.beam_pipeline.formats.test_formats import ALL, decoded, some_rows


@pytest.mark.parametrize(("vocab_size", "expected"), [(65_536, pa.uint16()), (65_537, pa.int32())])
def test_the_columns_are_lists_of_the_smallest_type(vocab_size: int, expected: pa.DataType):
    made = Parquet(RowForm(max_length=64, vocab_size=vocab_size, features=ALL))
    schema = pq.read_schema(io.BytesIO(b"".join(made.encode(some_rows(9, 64, vocab_size)))))
    types = {name: schema.field(name).type.value_type for name in schema.names}
    small = pa.uint16()
    assert types == {
        "input_ids": expected,
        "attention_mask": pa.uint8(),
        "segment_ids": small,
        "position_ids": small,
    }


def test_row_groups_have_a_bounded_size():
    made = Parquet(RowForm(max_length=1 << 20, vocab_size=300, features=("input_ids",)))
    file = pq.ParquetFile(io.BytesIO(b"".join(made.encode(some_rows(5, 1 << 20, 300)))))
    assert [file.metadata.row_group(number).num_rows for number in range(3)] == [2, 2, 1]


def test_ids_take_about_as_many_bits_as_the_vocabulary_needs():
    made = Parquet(RowForm(max_length=512, vocab_size=50_000, features=("attention_mask", "input_ids")))
    block = some_rows(4096, 512, 50_000)
    assert len(b"".join(made.encode(block))) < 1.2 * 2 * block.ids.size


def test_null_values_are_an_error():
    made = Parquet(RowForm(max_length=2, vocab_size=9, features=("input_ids",)))
    sink = io.BytesIO()
    values = pa.array([[1, None], [2, 3]], pa.list_(pa.uint16()))
    pq.write_table(pa.table({"input_ids": values}), sink)
    with pytest.raises(RecordError, match="the-shard: input_ids has null values"):
        decoded(made, sink.getvalue())


def test_signed_and_unsigned_values_survive():
    made = Parquet(RowForm(max_length=8, vocab_size=2**21, features=("input_ids",)))
    block = some_rows(3, 8, 2**21)
    block.ids[0, 0] = 2**21 - 1
    assert decoded(made, b"".join(made.encode(block)))["input_ids"].max() == 2**21 - 1
    assert np.array_equal(decoded(made, b"".join(made.encode(block)))["input_ids"], block.ids)
