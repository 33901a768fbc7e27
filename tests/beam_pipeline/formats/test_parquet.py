"""Parquet shards, as other libraries see them."""

from __future__ import annotations

import io
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipeline.dataset.records import RecordError
from beam_pipeline.formats import parquet
from beam_pipeline.formats.base import RowForm
from beam_pipeline.formats.parquet import Parquet, ParquetDocuments
from beam_pipeline.rows.documents import DocumentBlock
from tests.beam_pipeline.formats.test_formats import ALL, decoded, some_rows


@pytest.mark.parametrize(("vocab_size", "expected"), [(65_536, pa.uint16()), (65_537, pa.int32())])
def test_the_columns_are_lists_of_the_smallest_type(vocab_size: int, expected: pa.DataType):
    row_format = Parquet(RowForm(max_length=64, vocab_size=vocab_size, features=ALL))
    schema = pq.read_schema(io.BytesIO(b"".join(row_format.encode(some_rows(9, 64, vocab_size)))))
    types = {name: schema.field(name).type.value_type for name in schema.names}
    small_type = pa.uint16()
    assert types == {
        "input_ids": expected,
        "attention_mask": pa.uint8(),
        "segment_ids": small_type,
        "position_ids": small_type,
    }


def test_row_groups_have_a_bounded_size():
    row_format = Parquet(RowForm(max_length=1 << 20, vocab_size=300, features=("input_ids",)))
    file = pq.ParquetFile(io.BytesIO(b"".join(row_format.encode(some_rows(5, 1 << 20, 300)))))
    assert [file.metadata.row_group(number).num_rows for number in range(3)] == [2, 2, 1]


def test_ids_take_about_as_many_bits_as_the_vocabulary_needs():
    row_format = Parquet(RowForm(max_length=512, vocab_size=50_000, features=("attention_mask", "input_ids")))
    block = some_rows(4096, 512, 50_000)
    assert len(b"".join(row_format.encode(block))) < 1.2 * 2 * block.ids.size


def test_null_values_are_an_error():
    row_format = Parquet(RowForm(max_length=2, vocab_size=9, features=("input_ids",)))
    sink = io.BytesIO()
    values = pa.array([[1, None], [2, 3]], pa.list_(pa.uint16()))
    pq.write_table(pa.table({"input_ids": values}), sink)
    with pytest.raises(RecordError, match="the-shard: input_ids has null values"):
        decoded(row_format, sink.getvalue())


def test_signed_and_unsigned_values_survive():
    row_format = Parquet(RowForm(max_length=8, vocab_size=2**21, features=("input_ids",)))
    block = some_rows(3, 8, 2**21)
    block.ids[0, 0] = 2**21 - 1
    assert decoded(row_format, b"".join(row_format.encode(block)))["input_ids"].max() == 2**21 - 1
    assert np.array_equal(decoded(row_format, b"".join(row_format.encode(block)))["input_ids"], block.ids)


DOCUMENTS = ParquetDocuments(RowForm(max_length=None, vocab_size=70_000, features=("input_ids",)))


def some_documents(lengths: list[int]) -> DocumentBlock:
    ids = np.random.default_rng(0).integers(0, 70_000, sum(lengths)).astype(np.uint32)
    return DocumentBlock(ids, np.array(lengths, np.uint32))


def write_documents(blocks: list[DocumentBlock]) -> bytes:
    file = io.BytesIO()
    DOCUMENTS.write(blocks, file, None)
    return file.getvalue()


def read(data: bytes, *span: int | None) -> list[list[int]]:
    result = []
    for block in DOCUMENTS.read(io.BytesIO(data), None, "the-shard", *span):
        result += [part.tolist() for part in np.split(block.ids, np.cumsum(block.lengths)[:-1])]
    return result


@settings(deadline=None)
@given(
    lengths=st.lists(st.integers(1, 30), max_size=40),
    cuts=st.lists(st.integers(0, 40), max_size=5),
    limits=st.tuples(st.integers(1, 40), st.integers(1, 9)),
)
def test_row_groups_of_documents_are_bounded_and_do_not_depend_on_the_blocks(lengths, cuts, limits):
    document_block = some_documents(lengths)
    places = [0, *sorted(min(cut, len(lengths)) for cut in cuts), len(lengths)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet, "_VALUES_PER_GROUP", limits[0])
        patch.setattr(parquet, "_DOCUMENTS_PER_GROUP", limits[1])
        data = write_documents([document_block])
        assert write_documents([document_block.cut(*span) for span in pairwise(places)]) == data
    documents = (
        [part.tolist() for part in np.split(document_block.ids, np.cumsum(lengths)[:-1])] if lengths else []
    )
    assert read(data) == documents
    for first in range(len(lengths)):
        assert read(data, first, 3) == documents[first : first + 3]
    metadata = pq.read_metadata(io.BytesIO(data))
    groups = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
    for number, end in enumerate(np.cumsum(groups).tolist()):
        group_lengths = lengths[end - groups[number] : end]
        assert len(group_lengths) == 1 or (
            sum(group_lengths) <= limits[0] and len(group_lengths) <= limits[1]
        )
        if end < len(lengths):  # it has as many as fit
            assert sum(lengths[end - groups[number] : end + 1]) > limits[0] or len(group_lengths) == limits[1]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([[1], []], pa.list_(pa.int32())), "a document has no tokens"),
        (pa.array([[1], None], pa.list_(pa.int32())), "null values"),
        (
            pa.array([[1], [70_000]], pa.list_(pa.int32())),
            "ids range from 1 to 70000, outside of the vocabulary",
        ),
        (pa.array([[-1], [5]], pa.list_(pa.int32())), "ids range from -1 to 5, outside of the vocabulary"),
        (pa.array([[1], [5]], pa.list_(pa.int64())), "input_ids has the type"),
        (pa.array([1, 5], pa.int32()), "input_ids has the type"),
    ],
)
def test_documents_of_another_form_are_an_error(column: pa.Array, message: str):
    sink = io.BytesIO()
    pq.write_table(pa.table({"input_ids": column}), sink)
    with pytest.raises(RecordError, match=f"the-shard: .*{message}"):
        read(sink.getvalue())


def test_damaged_documents_are_an_error():
    data = write_documents([some_documents([5, 900, 3])])
    half = len(data) // 2
    for damaged_data in (b"", data[:half], data[:half] + bytes([data[half] ^ 1]) + data[half + 1 :]):
        with pytest.raises(RecordError, match="the-shard: not an intact parquet file"):
            read(damaged_data)
