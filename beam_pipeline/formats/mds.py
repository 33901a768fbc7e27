"""MosaicML's MDS files: the rows one after the other, each an array of fixed size per feature.

The bytes are those of `streaming.MDSWriter` for these columns (github.com/mosaicml/streaming). The
file index.json beside the shards lists them. Columns of records are JSON, since a text cannot be null.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np

from beam_pipeline.dataset.records import RecordError
from beam_pipeline.formats.base import RowFormat, feature_columns, value_type
from beam_pipeline.rows.blocks import RowBlock
from beam_pipeline.support.errors import DataError
from tokenmill_reader.format.limits import MOST_MDS_BYTES
from tokenmill_reader.format.names import INDEX

_VALUES_PER_PIECE = 1 << 20


class MDS(RowFormat):
    """Rows as MDS files, and index.json beside them."""

    name = "mds"

    def max_records(self) -> int:
        return (MOST_MDS_BYTES - 8 - len(self._config())) // (4 + self._row_bytes())

    def encode(self, block: RowBlock) -> Iterator[bytes]:
        config, size = self._config(), self._row_bytes()
        texts = _json_texts(block)
        sizes = size + sum((_lengths(values) for values in texts.values()), np.zeros(len(block), np.int64))
        header_bytes = 4 * (len(block) + 2) + len(config)
        places = header_bytes + np.concatenate([[0], np.cumsum(sizes)])
        if places[-1] > MOST_MDS_BYTES:
            raise DataError(
                f"--output_format mds: a shard of {len(block):,} of these rows would have {places[-1]:,} bytes, but "
                f"can have at most {MOST_MDS_BYTES:,}; use a smaller --shard_size, or more --num_shards"
            )
        yield np.uint32(len(block)).tobytes() + places.astype("<u4").tobytes() + config
        rows = max(1, _VALUES_PER_PIECE // self.form.max_length)
        for start in range(0, len(block), rows):
            span = slice(start, min(start + rows, len(block)))
            columns = feature_columns(block.take(span), self.form.features)
            arrays = {
                column: np.ascontiguousarray(columns[name], self._type(name))
                .view(np.uint8)
                .reshape(span.stop - span.start, -1)
                for column, name in self._features().items()
            }
            if texts:
                yield _rows_with_texts(arrays, {name: values[span] for name, values in texts.items()})
            else:
                yield np.concatenate([*arrays.values()], axis=1).tobytes()

    def decode(
        self, file: BinaryIO, path: str, first: int = 0, count: int | None = None
    ) -> Iterator[dict[str, np.ndarray]]:
        config = self._config()
        head = file.read(4)
        if len(head) < 4:
            raise RecordError(f"{path}: the file is truncated to {len(head)} bytes")
        total = int(np.frombuffer(head, "<u4")[0])
        table = file.read(4 * (total + 1))
        if len(table) < 4 * (total + 1):  # before memory for so many rows is allocated
            raise RecordError(f"{path}: the file ends within the places of {total} rows")
        places = np.frombuffer(table, "<u4").astype(np.int64)
        if not self._is_head(places, 4 * (total + 2) + len(config)) or file.read(len(config)) != config:
            raise RecordError(f"{path}: the file's head does not describe {total} rows of these features")
        end = total if count is None else min(total, first + count)
        rows = max(1, _VALUES_PER_PIECE // self.form.max_length)
        file.seek(int(places[min(first, total)]))
        for start in range(first, end, rows):
            bounds = places[start : min(start + rows, end) + 1] - places[start]
            data = file.read(int(bounds[-1]))
            if len(data) < bounds[-1]:
                raise RecordError(
                    f"{path}: the file ends within row {start + np.searchsorted(bounds, len(data), 'right') - 1}"
                )
            yield self._decode_rows(data, bounds, path)
        if end == total and file.read(1):
            raise RecordError(f"{path}: the file continues after its {total} rows")

    def _is_head(self, places: np.ndarray, first: int) -> bool:
        """Determines whether rows can have these places, int64 [rows + 1], if the first one is at `first`."""
        sizes = np.diff(places)
        has_size = sizes >= self._row_bytes() if self.form.record_columns else sizes == self._row_bytes()
        return places[0] == first and bool(has_size.all())

    def _decode_rows(self, data: bytes, bounds: np.ndarray, path: str) -> dict[str, np.ndarray]:
        """Returns the features of rows, which begin at `bounds[:-1]`, and their texts."""
        texts: dict[str, np.ndarray] = {}
        if self.form.record_columns:
            arrays, texts = self._split_rows(data, bounds, path)
        else:
            values = np.frombuffer(data, np.uint8).reshape(len(bounds) - 1, self._row_bytes())
            widths = [self._width(name) for name in self._features().values()]
            arrays = dict(
                zip(self._features(), np.split(values, np.cumsum(widths[:-1]), axis=1), strict=True)
            )
        columns = {
            name: np.ascontiguousarray(arrays[column]).view(self._type(name)).astype(np.int64)
            for column, name in self._features().items()
        }
        return {name: columns[name] for name in self.form.features} | texts

    def _split_rows(
        self, data: bytes, bounds: np.ndarray, path: str
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Returns the bytes of each column of ids and masks, uint8 [rows, bytes], and the texts of the others."""
        features, rows = self._features(), len(bounds) - 1
        arrays = {column: np.empty((rows, self._width(name)), np.uint8) for column, name in features.items()}
        texts = {name: np.empty(rows, object) for name in self.form.record_columns}
        for row, (place, end) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)):
            sizes = iter(np.frombuffer(data, "<u4", len(texts), place).tolist())
            place += 4 * len(texts)
            for column in self._column_names():
                size = self._width(features[column]) if column in features else next(sizes)
                content = data[place : min(place + size, end)]
                place += size
                try:
                    if column in features:
                        arrays[column][row] = np.frombuffer(content, np.uint8)
                    else:
                        texts[column][row] = json.loads(content)
                except ValueError as error:
                    raise RecordError(f"{path}: {column} of a row is broken: {error}") from error
            if place != end or not all(
                value[row] is None or isinstance(value[row], str) for value in texts.values()
            ):
                raise RecordError(
                    f"{path}: a row does not have the columns {', '.join(self._column_names())}"
                )
        return arrays, texts

    def split_files(self, shards: Sequence[Mapping[str, Any]]) -> dict[str, bytes]:
        entries = [
            {
                **self._columns(),
                "raw_data": {"basename": shard["name"], "bytes": shard["bytes"], "hashes": {}},
                "samples": shard["records"],
                "zip_data": None,
            }
            for shard in shards
        ]
        return {INDEX: json.dumps({"shards": entries, "version": 2}, sort_keys=True).encode()}

    def _type(self, name: str) -> np.dtype:
        return value_type(name, self.form)

    def _features(self) -> dict[str, str]:
        """Returns the feature of each column, by the column's name, in the order of the columns."""
        names = {self.form.ids_column if name == "input_ids" else name: name for name in self.form.features}
        return dict(sorted(names.items()))

    def _column_names(self) -> list[str]:
        """Returns the names of all columns, in their order."""
        return sorted([*self._features(), *self.form.record_columns])

    def _width(self, name: str) -> int:
        """Returns the bytes that a row has of a feature."""
        return self.form.max_length * self._type(name).itemsize

    def _row_bytes(self) -> int:
        """Returns the bytes of a row without the content of its texts."""
        return sum(map(self._width, self.form.features)) + 4 * len(self.form.record_columns)

    def _columns(self) -> dict[str, Any]:
        """Returns the description of the columns, which is in both the shards and index.json."""
        features = self._features()
        encodings = {
            column: f"ndarray:{self._type(name).name}:{self.form.max_length}"
            for column, name in features.items()
        }
        names = self._column_names()
        return {
            "column_encodings": [encodings.get(name, "json") for name in names],
            "column_names": names,
            "column_sizes": [self._width(features[name]) if name in features else None for name in names],
            "compression": None,
            "format": "mds",
            "hashes": [],
            "size_limit": None,
            "version": 2,
        }

    def _config(self) -> bytes:
        return json.dumps(self._columns(), sort_keys=True).encode()


def _json_texts(block: RowBlock) -> dict[str, list[bytes]]:
    """Returns the values of each column of records as JSON."""
    if block.columns is None:
        return {}
    return {
        name: [json.dumps(value).encode() for value in block.columns[name].to_pylist()]
        for name in sorted(block.columns.column_names)
    }


def _lengths(values: Sequence[bytes]) -> np.ndarray:
    return np.fromiter(map(len, values), np.int64, len(values))


def _rows_with_texts(arrays: Mapping[str, np.ndarray], texts: Mapping[str, Sequence[bytes]]) -> bytes:
    """Returns rows whose columns differ in size: the sizes of the texts of each, and then all columns by name.

    Args:
        arrays: uint8 [rows, bytes], for each column of a fixed size.
        texts: A value for each row, for each other column, in the order of the names.
    """
    sizes = np.stack([_lengths(values) for values in texts.values()], axis=1).astype("<u4")
    columns: list[Sequence[Any]] = [
        sizes,
        *(arrays.get(name, texts.get(name)) for name in sorted([*arrays, *texts])),
    ]
    return b"".join(part for row in zip(*columns, strict=True) for part in row)


ROW_FORMAT = MDS
