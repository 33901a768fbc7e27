"""Blocks of whole documents, for `--packing none`: the counterpart of `RowBlock`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from beam_pipeline.engines.token_arrays import id_dtype_of, joined_columns, selected_columns
from beam_pipeline.native.ids import CHECKSUM_VALUES
from beam_pipeline.rows.blocks import BLOCK_BYTES, columns_from_bytes, columns_to_bytes
from beam_pipeline.support.arrow import pa
from beam_pipeline.support.hashing import mix64


@dataclass(frozen=True)
class DocumentBlock:
    """Some documents of one split, in the order of the input."""

    ids: np.ndarray
    """uint16 or uint32 [tokens of all documents]: token ids."""
    lengths: np.ndarray
    """uint32 [documents]: the number of tokens in each document, at least 1."""
    columns: pa.Table | None = field(default=None, repr=False)
    """The `column_table` of the documents' records. None without `--record_columns`."""

    def __len__(self) -> int:
        return len(self.lengths)

    def cut(self, start: int, end: int) -> DocumentBlock:
        """Returns the documents [first, end).

        >>> DocumentBlock(np.array([5, 6, 7, 8]), np.array([1, 2, 1], np.uint32)).cut(1, 3)
        DocumentBlock(ids=array([6, 7, 8]), lengths=array([2, 1], dtype=uint32))
        """
        first_token = int(self.lengths[:start].sum(dtype=np.int64))
        tokens = int(self.lengths[start:end].sum(dtype=np.int64))
        columns = selected_columns(self.columns, slice(start, end))
        return DocumentBlock(self.ids[first_token : first_token + tokens], self.lengths[start:end], columns)

    @classmethod
    def concatenate(cls, blocks: Sequence[DocumentBlock]) -> DocumentBlock:
        """Returns the documents of several blocks."""
        ids, lengths = (
            np.concatenate([getattr(block, name) for block in blocks]) for name in ("ids", "lengths")
        )
        return cls(ids, lengths, joined_columns([block.columns for block in blocks]))

    def divide(self) -> Iterator[DocumentBlock]:
        """Cuts the block into blocks of at most `BLOCK_BYTES` of ids, or of one document."""
        tokens = BLOCK_BYTES // self.ids.itemsize
        ends = np.cumsum(self.lengths, dtype=np.int64)
        start = 0
        while start < len(self):
            first_token = int(ends[start - 1]) if start else 0
            end = max(start + 1, int(np.searchsorted(ends, first_token + tokens, side="right")))
            yield DocumentBlock(
                self.ids[first_token : int(ends[end - 1])],
                self.lengths[start:end],
                selected_columns(self.columns, slice(start, end)),
            )
            start = end

    def checksum(self) -> int:
        """Returns the sum of the documents' hashes mod 2**64. The hash of a document is that of a row without padding.

        See `rows_checksum`.
        """
        ends = np.cumsum(self.lengths, dtype=np.int64)
        document_starts = ends - self.lengths
        hashes = np.zeros(len(self), np.uint64)
        for start in range(0, len(self.ids), CHECKSUM_VALUES):
            end = min(start + CHECKSUM_VALUES, len(self.ids))
            # The documents that are in this part, and the piece of each.
            inside = slice(
                np.searchsorted(ends, start, side="right"), np.searchsorted(document_starts, end, side="left")
            )
            starts = np.maximum(document_starts[inside], start)
            sizes = np.minimum(ends[inside], end) - starts
            positions = np.arange(start, end) - np.repeat(document_starts[inside], sizes)
            products = self.ids[start:end].astype(np.uint64) * (
                mix64(positions.astype(np.uint64)) | np.uint64(1)
            )
            hashes[inside] += np.add.reduceat(products, starts - start)
        hashes = mix64(hashes + (self.lengths.astype(np.uint64) << np.uint64(40)))
        return int(hashes.sum(dtype=np.uint64))

    def parts(self) -> list[bytes | np.ndarray]:
        """Returns what `from_bytes` reads, in parts: the numbers of documents, of bytes per id and of tokens; the
        arrays; and the bytes of the columns.
        """
        sizes = np.array([len(self), self.ids.itemsize, len(self.ids)], np.uint64)
        lengths, ids = np.asarray(self.lengths, np.uint32), np.ascontiguousarray(self.ids)
        return [sizes, lengths, ids, columns_to_bytes(self.columns)]

    @classmethod
    def from_bytes(cls, data: bytes) -> DocumentBlock:
        """Makes a block of views into `data`, without copying."""
        count, itemsize, tokens = np.frombuffer(data, np.uint64, 3).tolist()
        lengths = np.frombuffer(data, np.uint32, count, 24)
        ids = np.frombuffer(data, id_dtype_of(itemsize), tokens, 24 + lengths.nbytes)
        columns = np.frombuffer(data, np.uint8, offset=24 + lengths.nbytes + ids.nbytes)
        return cls(ids, lengths, columns_from_bytes(columns) if len(columns) else None)
