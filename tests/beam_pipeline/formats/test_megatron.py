"""Pairs of .bin and .idx files: the bytes that Megatron-LM writes, read back, and each kind of damage found."""

from __future__ import annotations

import io
import struct
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipeline.dataset.records import RecordError
from beam_pipeline.engines.token_arrays import id_dtype
from beam_pipeline.formats import megatron as module
from beam_pipeline.formats.base import RowForm
from beam_pipeline.formats.megatron import Megatron
from beam_pipeline.rows.blocks import rows_checksum
from beam_pipeline.rows.documents import DocumentBlock
from tests.beam_pipeline.megatron import build

VOCAB_SIZES = (9, 65_499, 65_500, 65_536, 65_537, 2**21, 2**31)


def form(vocab_size: int) -> Megatron:
    return Megatron(RowForm(max_length=None, vocab_size=vocab_size, features=("input_ids",)))


def block_of(documents: list[list[int]], vocab_size: int) -> DocumentBlock:
    ids = np.array([*chain.from_iterable(documents)], id_dtype(vocab_size))
    return DocumentBlock(ids, np.array([len(document) for document in documents], np.uint32))


def write_pair(blocks: list[DocumentBlock], vocab_size: int) -> tuple[bytes, bytes]:
    file, index = io.BytesIO(), io.BytesIO()
    form(vocab_size).write(blocks, file, index)
    return file.getvalue(), index.getvalue()


def read(data: bytes, index: bytes, vocab_size: int, *span: int | None) -> list[list[int]]:
    result = []
    for block in form(vocab_size).read(io.BytesIO(data), io.BytesIO(index), "the-shard", *span):
        result += [part.tolist() for part in np.split(block.ids, np.cumsum(block.lengths)[:-1])]
    return result


@st.composite
def some_documents(draw) -> tuple[int, list[list[int]]]:
    vocab_size = draw(st.sampled_from(VOCAB_SIZES))
    token = st.integers(0, vocab_size - 1)
    return vocab_size, draw(st.lists(st.lists(token, min_size=1, max_size=9), max_size=9))


@settings(deadline=None)
@given(vocabulary_and_documents=some_documents(), cut=st.integers(0, 9))
def test_the_bytes_are_those_of_the_specification_and_are_read_back(vocabulary_and_documents, cut):
    vocab_size, documents = vocabulary_and_documents
    blocks = [block_of(documents[:cut], vocab_size), block_of(documents[cut:], vocab_size)]
    files = write_pair(blocks, vocab_size)
    assert files == build(documents, vocab_size)
    assert read(*files, vocab_size) == documents
    for first in range(len(documents)):
        assert read(*files, vocab_size, first, 2) == documents[first : first + 2]


def test_many_documents_are_written_and_read_in_parts(monkeypatch):
    monkeypatch.setattr(module, "_DOCUMENTS_AT_A_TIME", 7)
    monkeypatch.setattr(module, "_TOKENS_AT_A_TIME", 10)
    documents = [[number % 9] * (1 + number % 23) for number in range(100)]
    files = write_pair([block_of(documents, 9)], 9)
    assert files == build(documents, 9)
    assert read(*files, 9) == documents
    assert read(*files, 9, 33, 20) == documents[33:53]


@settings(deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.integers(1, 12))
def test_a_checksum_is_that_of_full_rows_and_does_not_depend_on_the_cut(lengths, step):
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 60_000, sum(lengths)).astype(np.uint16)
    block = DocumentBlock(ids, np.array(lengths, np.uint32))
    each = [part[None] for part in np.split(ids, np.cumsum(lengths)[:-1])]
    expected = sum(rows_checksum(part, np.array([part.size])) for part in each) % 2**64
    assert block.checksum() == expected
    parts = [block.cut(first, first + step) for first in range(0, len(lengths), step)]
    assert sum(part.checksum() for part in parts) % 2**64 == expected
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("beam_pipeline.rows.documents.CHECKSUM_VALUES", 3)
        assert block.checksum() == expected


def test_blocks_are_cut_at_documents(monkeypatch):
    monkeypatch.setattr("beam_pipeline.rows.documents.BLOCK_BYTES", 10)
    block = block_of([[1], [2, 2], [3, 3], [4] * 9, [5]], 9)
    parts = list(block.divide())
    assert [part.lengths.tolist() for part in parts] == [[1, 2, 2], [9], [1]]
    assert np.concatenate([part.ids for part in parts]).tolist() == block.ids.tolist()
    second = DocumentBlock.from_bytes(b"".join(parts[0].parts()))
    assert (second.ids.tolist(), second.lengths.tolist()) == ([1, 2, 2, 3, 3], [1, 2, 2])


DATA, INDEX = build([[1, 2, 3], [4], [5, 6]], 9)


def overwrite_number(data: bytes, place: int, kind: str, value: int) -> bytes:
    damaged_data = bytearray(data)
    struct.pack_into(kind, damaged_data, place, value)
    return bytes(damaged_data)


@pytest.mark.parametrize(
    ("data", "index", "message"),
    [
        (DATA, b"", "truncated to 0 bytes"),
        (DATA, INDEX[:40], "of 3 documents has 40 bytes"),
        (DATA, INDEX + b"x", "of 3 documents has 103 bytes"),
        (DATA, b"X" + INDEX[1:], "not one of Megatron-LM's"),
        (DATA, overwrite_number(INDEX, 9, "<Q", 2), "not one of Megatron-LM's, version 1"),
        (DATA, overwrite_number(INDEX, 17, "<B", 4), "ids have the type 4, not 8"),
        (DATA, overwrite_number(INDEX, 26, "<Q", 3), "2 documents have 3 sequences"),
        (DATA, overwrite_number(INDEX, 34, "<i", 4), "wrong places of documents"),
        (DATA, overwrite_number(INDEX, 34, "<i", 0), "has no tokens"),
        (DATA, overwrite_number(INDEX, 34, "<i", -5), "has no tokens"),
        (DATA, overwrite_number(INDEX, 46, "<q", 2), "wrong places of documents"),
        (DATA, overwrite_number(INDEX, 62, "<q", 10), "wrong places of documents"),
        (DATA, overwrite_number(INDEX, 78, "<q", 2), "does not have one sequence"),
        (DATA[:-2], INDEX, "wrong places of documents"),
        (DATA + b"xx", INDEX, "14 bytes, but the index has places of 12"),
        (overwrite_number(DATA, 4, "<H", 9), INDEX, "ids range from 1 to 9, outside of the vocabulary"),
        (b"x", build([], 9)[1], "1 bytes, but the index has places of"),
    ],
)
def test_damage_is_an_error_that_names_the_shard(data: bytes, index: bytes, message: str):
    with pytest.raises(RecordError, match=f"the-shard: .*{message}"):
        read(data, index, 9)
