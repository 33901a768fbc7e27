"""The interfaces of the formats of shards: of rows, and of whole documents."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, ClassVar

import numpy as np

from beam_pipeline.dataset.records import RecordError
from beam_pipeline.engines.token_arrays import id_dtype, ids_of, targets_of, with_targets
from beam_pipeline.rows.blocks import RowBlock
from beam_pipeline.rows.documents import DocumentBlock
from beam_pipeline.rows.packing import segments_and_positions
from beam_pipeline.sources.record_columns import column_table
from beam_pipeline.support import extras
from beam_pipeline.support.arrow import pa
from beam_pipeline.support.errors import UsageError
from tokenmill_reader.format.limits import MOST_RECORDS


@dataclass(frozen=True)
class RowForm:
    """The shape of all rows of a dataset, and the features that they have."""

    max_length: int | None
    """The number of values in each feature. None for documents."""
    vocab_size: int
    """The number of token ids."""
    features: tuple[str, ...]
    """The features' names, sorted."""
    ids_column: str = "input_ids"
    """The name of the feature input_ids in MDS files."""
    record_columns: tuple[str, ...] = ()
    """The columns of records: nullable texts."""


class Format:
    """A format of shards: of rows, or of whole documents. Equal rows or documents give equal bytes.

    A module has a `ROW_FORMAT`, a `DOCUMENT_FORMAT`, or both. To add one, add its name and the extension of its files
    to `dataset.shards.EXTENSIONS`, and its name to `option_values` and the option `--output_format`.
    """

    name: ClassVar[str]
    """The name in `--output_format`."""
    extra: ClassVar[str | None] = None
    """The extra of the distribution that the format needs."""

    def __init__(self, form: RowForm):
        self.form = form

    def split_files(self, shards: Sequence[Mapping[str, Any]]) -> dict[str, bytes]:
        """Returns the content of further files that a split's folder must have, by their names.

        Args:
            shards: The split's shards, as in its manifest.
        """
        return {}

    def max_records(self) -> int:
        """Returns the largest number of records that a shard can have."""
        return MOST_RECORDS

    def check_records(self, records: int) -> None:
        """Raises UsageError if a shard cannot have so many records."""
        if records > self.max_records():
            raise UsageError(
                f"--output_format {self.name}: a shard would have about {records:,} records, but can have at most "
                f"{self.max_records():,}; use a smaller --shard_size, or more --num_shards"
            )

    @classmethod
    def check_packages(cls) -> None:
        """Raises UsageError if a package that the format needs is not installed."""
        if cls.extra is not None:
            extras.require(cls.extra, f"the format {cls.name}")


class RowFormat(Format, ABC):
    """Encodes a shard's rows as the bytes of a file, and decodes them."""

    sequential: ClassVar[bool] = False
    """Whether `decode` reads the file from its start to its end, without seeking."""
    has_offsets: ClassVar[bool] = False
    """Whether the offsets of a shard's records are written to a file beside it. The shard then has TFRecord framing."""

    @abstractmethod
    def encode(self, block: RowBlock) -> Iterator[bytes | np.ndarray]:
        """Yields the bytes of a shard's file, in pieces."""

    @abstractmethod
    def decode(
        self, file: BinaryIO, path: str, first: int = 0, count: int | None = None
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yields the features of a shard's rows, some rows at a time: int64 [rows, max_length] by name.

        If the form has columns of records, they are beside the features, as arrays of objects.

        Args:
            file: The shard's file, at its start.
            path: The path of the file, for messages.
            first: The number of rows to skip.
            count: The largest number of rows to decode; None: all.

        Raises:
            RecordError: If the file is malformed, or its rows do not have this form.
        """


class DocumentFormat(Format, ABC):
    """Writes a shard's documents to a file, and reads them."""

    has_index: ClassVar[bool] = False
    """Whether the offsets of documents are written to a second file, the shard's index."""

    @abstractmethod
    def write(self, blocks: Iterable[DocumentBlock], file: BinaryIO, index: BinaryIO | None) -> None:
        """Writes the files of a shard. The bytes do not depend on how the documents are divided into blocks."""

    @abstractmethod
    def read(
        self, file: BinaryIO, index: BinaryIO | None, path: str, first: int = 0, count: int | None = None
    ) -> Iterator[DocumentBlock]:
        """Yields a shard's documents, some at a time.

        Args:
            file: The shard's file, at its start.
            index: The shard's index, at its start, if the format has one.
            path: The path of the shard's file, for messages.
            first: The number of documents to skip.
            count: The largest number of documents to read; None: all.

        Raises:
            RecordError: If a file is malformed, or they do not match.
        """

    def _block(
        self, ids: np.ndarray, lengths: np.ndarray, path: str, columns: pa.Table | None = None
    ) -> DocumentBlock:
        """Returns documents that were read from a shard.

        Args:
            ids: Integers [tokens], at least one.
            lengths: Integers [documents].
            path: The path of the shard's file, for messages.
            columns: Those of the documents' records.

        Raises:
            RecordError: If an id is outside of the vocabulary.
        """
        if not 0 <= int(ids.min()) <= int(ids.max()) < self.form.vocab_size:
            raise RecordError(
                f"{path}: the ids range from {ids.min()} to {ids.max()}, outside of the vocabulary"
            )
        return DocumentBlock(
            ids.astype(id_dtype(self.form.vocab_size), copy=False), lengths.astype(np.uint32), columns
        )


def value_type(name: str, form: RowForm) -> np.dtype:
    """Returns the smallest type among uint8, uint16 and int32 that can represent the values of a feature."""
    if name in ("attention_mask", "loss_mask"):
        return np.dtype(np.uint8)
    count = form.vocab_size if name == "input_ids" else form.max_length + 1
    return np.dtype(np.uint16 if id_dtype(count) == np.uint16 else np.int32)


def rows_of(columns: Mapping[str, np.ndarray], manifest: Mapping[str, Any]) -> RowBlock:
    """Returns the rows with these features: the inverse of `feature_columns`.

    Args:
        columns: The features, as `RowFormat.decode` yields them.
        manifest: The split's manifest.
    """
    ids = columns["input_ids"]
    mask = columns.get("attention_mask")
    if mask is None:
        mask = ids != manifest["tokenizer"]["special_token_ids"]["pad"]
    starts = None
    if "segment_ids" in columns:
        starts = np.diff(columns["segment_ids"], axis=1, prepend=0) > 0
    elif "position_ids" in columns:
        starts = (columns["position_ids"] == 0) & (mask != 0)
    ids = ids.astype(id_dtype(manifest["tokenizer"]["vocab_size"]))
    if "loss_mask" in columns:
        ids = with_targets(ids, columns["loss_mask"] != 0)
    names = manifest.get("record_columns")
    return RowBlock(
        ids,
        mask.sum(axis=1).astype(np.uint32),
        None if starts is None else np.packbits(starts, axis=1),
        columns=column_table(columns, names) if names else None,
    )


def feature_columns(block: RowBlock, features: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Returns the values of each feature: integers [rows, max_length]."""
    columns = {"input_ids": block.ids}
    if "loss_mask" in features:
        columns = {"input_ids": ids_of(block.ids), "loss_mask": targets_of(block.ids)}
    if "attention_mask" in features:
        columns["attention_mask"] = np.arange(block.ids.shape[1]) < block.lengths[:, None]
    if "segment_ids" in features or "position_ids" in features:
        columns["segment_ids"], columns["position_ids"] = segments_and_positions(block)
    return {name: columns[name] for name in features}
