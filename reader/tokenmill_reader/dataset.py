"""The rows of a split as arrays, by their numbers."""

from __future__ import annotations

import functools
import itertools
import os
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import google_crc32c
import numpy as np

from tokenmill_reader import notebooks
from tokenmill_reader.decoding import check_frames, decode_in_place, gather
from tokenmill_reader.description import Description, describe, tokenizer_path
from tokenmill_reader.errors import REMEDY, DatasetError, RecordFault
from tokenmill_reader.examples import LARGE_RATIO, ExampleDecoder, parse_example
from tokenmill_reader.files import Folder, open_folder
from tokenmill_reader.fingerprints import fingerprint_of_shards
from tokenmill_reader.format.names import OPTIONAL_FEATURES
from tokenmill_reader.framing import HEAD_BYTES, TAIL_BYTES, Frames
from tokenmill_reader.indexes import Index, row_numbers, whole_number
from tokenmill_reader.shards import Shards

Rows = dict[str, np.ndarray]
"""Values by feature: int32[max_length] of one row, or int32[rows, max_length]."""

# Values of a feature that are decoded together: their bytes fit into a core's caches.
_VALUES_PER_CALL = 1 << 18
_FRAMING_BYTES = HEAD_BYTES + TAIL_BYTES
_FIRST = np.zeros(1, np.int64)


class Dataset:
    """The rows of one split.

    `dataset[7]` is the row 7, `dataset[[3, 1]]` and `dataset[10:20]` are several rows: a dict of int32 arrays, with
    `input_ids` and, if the dataset has them, `attention_mask`, `position_ids` and `segment_ids`. Rows are numbered over
    all shards, in the order of the shards. May be used by several threads, forked and pickled.

        dataset = Dataset.open("OUT/train")
        dataset[[0, len(dataset) - 1]]["input_ids"]  # int32[2, dataset.max_length]
    """

    def __init__(self, description: Description, *, check: float, seed: int, cache_bytes: int) -> None:
        """Use `open`."""
        self._description = description
        self._checked_share, self._seed = check, seed
        self._ends = np.cumsum(description.records)
        self._shards = Shards(description, cache_bytes=cache_bytes)
        self._decoders = threading.local()
        self.max_length, self.features = self._row_form()
        """Tokens per row, and the sorted names of the features of each record."""
        self._rows_per_call = max(1, _VALUES_PER_CALL // self.max_length)  # rows

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str] | Folder,
        *,
        check: float = 1 / 64,
        check_sizes: bool = False,
        seed: int = 0,
        cache_bytes: int = 1 << 30,
        storage_options: Mapping[str, Any] | None = None,
    ) -> Dataset:
        """Opens the folder of a split.

        Args:
            path: The folder, such as OUT/train: local, a URL that fsspec reads, or an implementation of `Folder`.
            check: The share of rows whose checksums are compared when they are read, from 0 to 1.
            check_sizes: Whether to compare the sizes of all local shards now, not only when each is first read.
            seed: Determines the rows whose checksums are compared.
            cache_bytes: Memory for shards of a remote dataset.
            storage_options: Options of fsspec's file system.

        Raises:
            DatasetError: If there is no dataset, it is incomplete or damaged, or its version is not supported.
        """
        if not 0 <= check <= 1:
            raise ValueError(f"check is {check}, not a share from 0 to 1")
        try:
            folder = open_folder(path, storage_options or {}) if isinstance(path, str | os.PathLike) else path
            description = describe(folder, check_sizes=check_sizes)
        except DatasetError:
            raise
        except (OSError, ValueError) as error:  # also of fsspec, such as for an unknown kind of URL
            raise DatasetError(f"{str(path)[:200]!r}: cannot be opened: {error}") from error
        return cls(description, check=float(check), seed=whole_number("seed", seed), cache_bytes=cache_bytes)

    def __len__(self) -> int:
        """The number of rows."""
        return int(self._ends[-1]) if self._ends.size else 0

    def __repr__(self) -> str:
        columns = ", ".join(f"{name}: int32[{self.max_length}]" for name in self.features)
        return f"Dataset({self.path!r}, split {self.split!r}, {len(self)} rows of {{{columns}}})"

    def _repr_html_(self) -> str:
        """Shows the first rows in a notebook."""
        try:
            rows = [(number, self[number]) for number in range(min(notebooks.ROWS, len(self)))]
            has_tokenizer = self.tokenizer_path is not None
            tokenizer = self.read_file("../tokenizer/tokenizer.json") if has_tokenizer else None
        except DatasetError as error:
            return notebooks.message(f"{self!r}: {error}")
        return notebooks.rows_table(repr(self), rows, notebooks.make_decode(tokenizer))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_decoders"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._decoders = threading.local()

    @property
    def path(self) -> str:
        """The folder."""
        return self._description.folder.path

    @property
    def split(self) -> str:
        """The name of the split."""
        return self._description.split

    @property
    def manifest(self) -> dict[str, Any] | None:
        """The content of manifest.json without `shards`; None if there is none."""
        return self._description.manifest

    @functools.cached_property
    def fingerprint(self) -> str:
        """The manifest's fingerprint of the rows, or one of the shards. Compare it with `fingerprints.same_rows`."""
        description = self._description
        return description.fingerprint or fingerprint_of_shards(description.folder, description.names)

    @functools.cached_property
    def tokenizer_path(self) -> str | None:
        """The folder of the tokenizer; None if the dataset has none.

        Raises:
            DatasetError: If it is not the tokenizer that the dataset was prepared with.
        """
        return tokenizer_path(self._description)

    @property
    def names(self) -> tuple[str, ...]:
        """The files of the shards."""
        return tuple(self._description.names)

    @property
    def counts(self) -> np.ndarray:
        """Rows in each shard, int64[shards]."""
        return self._description.records

    def read_file(self, name: str) -> bytes | None:
        """Returns the content of a file beside the shards, such as statistics.json, or of one in a folder above.

        Returns:
            None if there is no such file.
        """
        return self._description.folder.read(name)

    def __getitem__(self, index: Index) -> Rows:
        """Reads rows.

        Raises:
            IndexError, TypeError: See `row_numbers`.
            DatasetError: If a shard or record is damaged.
        """
        if type(index) is int and 0 <= index < len(self):
            return self._read_row(index)
        numbers = row_numbers(index, len(self), self.path)
        rows = self._read_rows(np.atleast_1d(numbers))
        return rows if numbers.ndim else {name: values[0] for name, values in rows.items()}

    def __iter__(self) -> Iterator[Rows]:
        """Yields all rows in order."""
        for start in range(0, len(self), self._rows_per_call):
            rows = self[start : start + self._rows_per_call]
            for row in range(len(rows["input_ids"])):
                yield {name: values[row] for name, values in rows.items()}

    def locate(self, row: int) -> tuple[str, int]:
        """Returns the file of a row's shard, and the number of its record there."""
        row = int(row_numbers([row], len(self), self.path)[0])
        shard = int(np.searchsorted(self._ends, row, side="right"))
        return self._description.names[shard], row - int(self._ends[shard] - self.counts[shard])

    def read_ahead(self, rows: np.ndarray) -> None:
        """Loads the shards with these rows in the background, if the dataset is remote."""
        if self._description.folder.is_local:
            return
        self._shards.read_ahead(np.unique(np.searchsorted(self._ends, rows, side="right")).tolist())

    def keep_open(self, shards: int) -> None:
        """Keeps at least so many shards open, whatever `cache_bytes` is: those that are shuffled together."""
        self._shards.keep(shards)

    def verify(self) -> None:
        """Reads everything and compares all checksums: of the files, if there is a manifest, and of each record.

        Raises:
            DatasetError: At the first fault.
        """
        description = self._description
        vocab_size = (self.manifest or {}).get("tokenizer", {}).get("vocab_size", 2**31)
        for shard, name in enumerate(description.names):
            path = f"{self.path}/{name}"
            data, offsets, _ = self._shards.get(shard)
            frames = Frames(data, offsets[:-1], offsets[1:])
            all_checked = np.ones(offsets.size - 1, bool)
            try:
                check_frames(frames, all_checked)
            except RecordFault as fault:
                raise DatasetError(f"{path}: record {fault.row}: {fault.reason}; {REMEDY}") from None
            if description.checksums is not None:
                crc = google_crc32c.value(data)
                if crc != description.checksums[shard]:
                    raise DatasetError(
                        f"{path}: its CRC-32C is {crc:08x}, but the manifest specifies "
                        f"{description.checksums[shard]:08x}; {REMEDY}"
                    )
            end = int(self._ends[shard])
            for start in range(end - int(self.counts[shard]), end, self._rows_per_call):
                ids = self[start : min(start + self._rows_per_call, end)]["input_ids"]
                wrong_rows = np.flatnonzero(((ids < 0) | (ids >= vocab_size)).any(axis=1))
                if wrong_rows.size:
                    _, record = self.locate(start + int(wrong_rows[0]))
                    raise DatasetError(
                        f"{path}: record {record}: has ids that the tokenizer does not have; {REMEDY}"
                    )

    def _row_form(self) -> tuple[int, tuple[str, ...]]:
        """Returns the length and the features of the rows: from the manifest or, without one, the first record."""
        description = self._description
        if description.max_length is not None and description.features is not None:
            return description.max_length, description.features
        nonempty_shards = np.flatnonzero(description.records)
        if not nonempty_shards.size:
            raise DatasetError(f"{self.path}: the split has no rows; prepare it with more text")
        path = f"{self.path}/{description.names[nonempty_shards[0]]}"
        frames = self._shards.frames(int(nonempty_shards[0]), np.array([0]))
        try:
            check_frames(frames, np.ones(1, bool))
            frame = frames.data[frames.starts[0] : frames.ends[0]]
            features = parse_example(frame[HEAD_BYTES:-TAIL_BYTES].tobytes())
        except RecordFault as fault:
            raise DatasetError(f"{path}: record 0: {fault.reason}; {REMEDY}") from None
        except ValueError as error:
            raise DatasetError(f"{path}: record 0: is not a tf.train.Example: {error}; {REMEDY}") from None
        ids = features.get("input_ids")
        if ids is None or not ids.size:
            raise DatasetError(f"{path}: record 0: has no input_ids, only {sorted(features)[:8]}")
        feature_names = {"input_ids"} | (features.keys() & set(OPTIONAL_FEATURES))
        return ids.size, tuple(sorted(feature_names))

    def _read_row(self, row: int) -> Rows:
        """Reads one row, without the work for several ones."""
        shard = int(self._ends.searchsorted(row, side="right"))
        record = row - int(self._ends[shard]) + int(self.counts[shard])
        decoder, number = self._decoder(), np.array([row])
        if decoder.is_compiled:
            data, starts, ends = self._shards.frames(shard, np.array([record]))
            values = np.empty((len(self.features), 1, self.max_length), np.int32)
            out = dict(zip(self.features, values, strict=True))
            if decode_in_place(decoder, [(data, _FIRST)], starts, ends, self._is_checked(number), out):
                return {name: row_values[0] for name, row_values in out.items()}
        return {name: values[0] for name, values in self._read_rows(number).items()}

    def _read_rows(self, rows: np.ndarray) -> Rows:
        # One block, since glibc would return two of them to the system with each batch, and map them again.
        values = np.empty((len(self.features), rows.size, self.max_length), np.int32)
        out = dict(zip(self.features, values, strict=True))
        for start in range(0, rows.size, self._rows_per_call):
            span = slice(start, start + self._rows_per_call)
            self._read_batch(rows[span], {name: values[span] for name, values in out.items()})
        return out

    def _read_batch(self, rows: np.ndarray, out: Rows) -> None:
        """Reads a few hundred rows into int32[rows, max_length]."""
        shards = np.searchsorted(self._ends, rows, side="right")
        records = rows - (self._ends - self.counts)[shards]
        checked = self._is_checked(rows)
        by_shard = np.argsort(shards, kind="stable")
        edges = [0, *((shards[by_shard][1:] != shards[by_shard][:-1]).nonzero()[0] + 1).tolist(), rows.size]
        starts, ends = np.empty(rows.size, np.int64), np.empty(rows.size, np.int64)
        groups = []
        for start, end in itertools.pairwise(edges):
            group = by_shard[start:end]
            data, starts[group], ends[group] = self._shards.frames(int(shards[group[0]]), records[group])
            groups.append((data, group))
        decoder = self._decoder()
        if decoder.is_compiled and decode_in_place(decoder, groups, starts, ends, checked, out):
            return
        # Decodes the unusual records, and raises the errors of the damaged ones.
        sizes = ends - starts
        stride = int(sizes.max())
        try:
            if stride <= LARGE_RATIO * int(sizes.min()) or stride <= LARGE_RATIO * int(np.median(sizes)):
                gathered = gather(groups, starts, sizes, stride)
                record_starts = np.arange(rows.size) * stride
                check_frames(Frames(gathered, record_starts, record_starts + sizes), checked)
                decoder.decode(gathered[HEAD_BYTES:], stride, sizes - _FRAMING_BYTES, out)
                return
            for data, group in groups:
                for row in group.tolist():
                    frame = data[starts[row] : ends[row]]
                    check_frames(Frames(frame, np.array([0]), np.array([frame.size])), checked[[row]], row)
                    record = frame[HEAD_BYTES:-TAIL_BYTES].tobytes()
                    decoder.decode_record(record, {name: out[name][row] for name in out}, row)
        except RecordFault as fault:
            name, record = self.locate(int(rows[fault.row]))
            raise DatasetError(f"{self.path}/{name}: record {record}: {fault.reason}; {REMEDY}") from None

    def _decoder(self) -> ExampleDecoder:
        """Returns this thread's decoder, which has buffers."""
        if not hasattr(self._decoders, "decoder"):
            self._decoders.decoder = ExampleDecoder(max_length=self.max_length, features=self.features)
        return self._decoders.decoder

    def _is_checked(self, rows: np.ndarray) -> np.ndarray:
        """Returns which rows are in the sample whose checksums are compared, bool[rows]."""
        mixed = (rows.astype(np.uint64) + np.uint64(self._seed % 2**32 << 32)) * np.uint64(0x9E3779B97F4A7C15)
        return (mixed ^ mixed >> np.uint64(31)) * np.uint64(0xBF58476D1CE4E5B9) >> np.uint64(32) < int(
            self._checked_share * 2**32
        )
