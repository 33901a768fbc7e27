"""Megatron-LM's indexed datasets: the tokens of whole documents in a `.bin` file, and their places in an `.idx` file.

The bytes are those that Megatron-LM's `tools/preprocess_data.py` writes (`megatron/core/datasets/indexed_dataset.py`).
Each document is one sequence.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO

import numpy as np

from beam_pipeline.dataset.records import RecordError
from beam_pipeline.dataset.shards import index_size
from beam_pipeline.formats.base import DocumentFormat
from beam_pipeline.rows.documents import DocumentBlock

_HEADER = struct.Struct("<9sQBQQ")  # magic, version, code of the ids' type, sequences, document indices
_MAGIC, _VERSION = b"MMIDIDX\x00\x00", 1
_CODES = {"uint16": 8, "int32": 4}
_UINT16_VOCABULARY = 65_500  # Megatron-LM's limit; larger vocabularies have int32
_DOCUMENTS_AT_A_TIME = 1 << 17
_TOKENS_AT_A_TIME = 1 << 22


class Megatron(DocumentFormat):
    """Documents as Megatron-LM's pairs of .bin and .idx files. Each document is one sequence."""

    name = "megatron"
    has_index = True

    def write(self, blocks: Iterable[DocumentBlock], file: BinaryIO, index: BinaryIO) -> None:
        id_type = self._id_type()
        lengths = []
        for block in blocks:
            file.write(block.ids.astype(id_type, copy=False).tobytes())
            lengths.append(np.array(block.lengths, np.int32))
        all_lengths = np.concatenate([np.empty(0, np.int32), *lengths])
        count = len(all_lengths)
        index.write(_HEADER.pack(_MAGIC, _VERSION, _CODES[id_type.name], count, count + 1))
        index.write(all_lengths.tobytes())
        position = 0
        for start in range(0, count, _DOCUMENTS_AT_A_TIME):
            sizes = all_lengths[start : start + _DOCUMENTS_AT_A_TIME].astype(np.int64) * id_type.itemsize
            index.write((position + np.cumsum(sizes) - sizes).tobytes())
            position += int(sizes.sum())
        for start in range(0, count + 1, _DOCUMENTS_AT_A_TIME):
            index.write(np.arange(start, min(start + _DOCUMENTS_AT_A_TIME, count + 1)).tobytes())

    def read(
        self, file: BinaryIO, index: BinaryIO, path: str, first: int = 0, count: int | None = None
    ) -> Iterator[DocumentBlock]:
        id_type = self._id_type()
        size = file.seek(0, os.SEEK_END)
        documents = self._read_header(index, path)
        end = documents if count is None else min(documents, first + count)
        next_pointer = None if first else 0  # where the next document begins in the file
        for start in range(first, end, _DOCUMENTS_AT_A_TIME):
            batch_size = min(end - start, _DOCUMENTS_AT_A_TIME)
            lengths, pointers = self._read_entries(index, path, documents, start, batch_size)
            ends = pointers + lengths * id_type.itemsize
            expected_pointers = np.append(pointers[0] if next_pointer is None else next_pointer, ends[:-1])
            if (
                not np.array_equal(pointers, expected_pointers)
                or not 0 <= int(pointers[0]) <= int(ends[-1]) <= size
            ):
                raise RecordError(f"{path}: the index has wrong places of documents from {start} on")
            next_pointer = int(ends[-1])
            file.seek(int(pointers[0]))
            yield from self._read_documents(file, path, lengths, id_type)
        if count is None and not first and size != (next_pointer or 0):
            raise RecordError(f"{path}: {size} bytes, but the index has places of {next_pointer}")

    def _id_type(self) -> np.dtype:
        return np.dtype("<u2" if self.form.vocab_size < _UINT16_VOCABULARY else "<i4")

    def _read_header(self, index: BinaryIO, path: str) -> int:
        """Checks the head and the size of the index, and returns the number of documents."""
        size = index.seek(0, os.SEEK_END)
        index.seek(0)
        header = index.read(_HEADER.size)
        if len(header) < _HEADER.size:
            raise RecordError(f"{path}: the index is truncated to {size} bytes")
        magic, version, code, sequences, documents = _HEADER.unpack(header)
        if (magic, version) != (_MAGIC, _VERSION):
            raise RecordError(f"{path}: the index is not one of Megatron-LM's, version {_VERSION}")
        if code != _CODES[self._id_type().name]:
            raise RecordError(
                f"{path}: the ids have the type {code}, not {_CODES[self._id_type().name]}, which a vocabulary of "
                f"{self.form.vocab_size} ids has"
            )
        if documents != sequences + 1:
            raise RecordError(f"{path}: {documents - 1} documents have {sequences} sequences, not one each")
        if size != index_size(sequences):
            raise RecordError(f"{path}: the index of {sequences} documents has {size} bytes")
        return sequences

    def _read_entries(
        self, index: BinaryIO, path: str, documents: int, first: int, count: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Reads the lengths and places (int64 [count] each) of documents from number `first` on."""

        def read(value_type: Callable[..., Any], offset: int, values: int) -> np.ndarray:
            index.seek(offset)
            return np.frombuffer(index.read(np.dtype(value_type).itemsize * values), value_type).astype(
                np.int64
            )

        lengths = read(np.int32, _HEADER.size + 4 * first, count)
        pointers = read(np.int64, _HEADER.size + 4 * documents + 8 * first, count)
        numbers = read(np.int64, _HEADER.size + 12 * documents + 8 * first, count + 1)
        if (lengths < 1).any():
            raise RecordError(f"{path}: a document from {first} on has no tokens")
        if not np.array_equal(numbers, np.arange(first, first + count + 1)):
            raise RecordError(f"{path}: a document from {first} on does not have one sequence")
        return lengths, pointers

    def _read_documents(
        self, file: BinaryIO, path: str, lengths: np.ndarray, id_type: np.dtype
    ) -> Iterator[DocumentBlock]:
        """Yields consecutive documents of these lengths, some at a time."""
        ends = np.cumsum(lengths)
        start = tokens_read = 0
        while start < len(lengths):
            end = max(start + 1, int(np.searchsorted(ends, tokens_read + _TOKENS_AT_A_TIME, side="right")))
            tokens = int(ends[end - 1]) - tokens_read
            data = file.read(tokens * id_type.itemsize)
            if len(data) < tokens * id_type.itemsize:
                raise RecordError(f"{path}: ends within a document")
            yield self._block(np.frombuffer(data, id_type), lengths[start:end], path)
            start, tokens_read = end, int(ends[end - 1])


DOCUMENT_FORMAT = Megatron
