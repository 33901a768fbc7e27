"""MosaicML's MDS files: the rows one after the other, each an array of fixed size per feature.

The bytes are those of `streaming.MDSWriter` for these columns (github.com/mosaicml/streaming). The
file index.json beside the shards lists them.
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
        if len(block) > self.max_records():
            raise DataError(
                f"--output_format mds: a shard can have at most {self.max_records():,} of these rows, not "
                f"{len(block):,}; use a smaller --shard_size, or more --num_shards"
            )
        header_bytes = 4 * (len(block) + 2) + len(config)
        places = header_bytes + size * np.arange(len(block) + 1, dtype=np.int64)
        yield np.uint32(len(block)).tobytes() + places.astype("<u4").tobytes() + config
        rows = max(1, _VALUES_PER_PIECE // self.form.max_length)
        for start in range(0, len(block), rows):
            batch = block.take(slice(start, start + rows))
            columns = feature_columns(batch, self.form.features)
            arrays = [
                np.ascontiguousarray(columns[name], self._type(name)).view(np.uint8).reshape(len(batch), -1)
                for name in self._features().values()
            ]
            yield np.concatenate(arrays, axis=1).tobytes()

    def decode(
        self, file: BinaryIO, path: str, first: int = 0, count: int | None = None
    ) -> Iterator[dict[str, np.ndarray]]:
        config, size = self._config(), self._row_bytes()
        head = file.read(4)
        if len(head) < 4:
            raise RecordError(f"{path}: the file is truncated to {len(head)} bytes")
        total = int(np.frombuffer(head, "<u4")[0])
        header_bytes = 4 * (total + 2) + len(config)
        table = file.read(4 * (total + 1))
        if len(table) < 4 * (total + 1):  # before memory for so many rows is allocated
            raise RecordError(f"{path}: the file ends within the places of {total} rows")
        places = np.frombuffer(table, "<u4").astype(np.int64)
        if (
            not np.array_equal(places, header_bytes + size * np.arange(total + 1))
            or file.read(len(config)) != config
        ):
            raise RecordError(f"{path}: the file's head does not describe {total} rows of these features")
        end = total if count is None else min(total, first + count)
        rows = max(1, _VALUES_PER_PIECE // self.form.max_length)
        file.seek(header_bytes + min(first, total) * size)
        for start in range(first, end, rows):
            num_rows = min(rows, end - start)
            data = file.read(num_rows * size)
            if len(data) < num_rows * size:
                raise RecordError(f"{path}: the file ends within row {start + len(data) // size}")
            values = np.frombuffer(data, np.uint8).reshape(num_rows, size)
            columns, column = {}, 0
            for name in self._features().values():
                width = self.form.max_length * self._type(name).itemsize
                feature_values = np.ascontiguousarray(values[:, column : column + width]).view(
                    self._type(name)
                )
                columns[name] = feature_values.astype(np.int64)
                column += width
            yield {name: columns[name] for name in self.form.features}
        if end == total and file.read(1):
            raise RecordError(f"{path}: the file continues after its {total} rows")

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

    def _row_bytes(self) -> int:
        return sum(self.form.max_length * self._type(name).itemsize for name in self.form.features)

    def _columns(self) -> dict[str, Any]:
        """Returns the description of the columns, which is in both the shards and index.json."""
        length, features = self.form.max_length, self._features()
        return {
            "column_encodings": [f"ndarray:{self._type(name).name}:{length}" for name in features.values()],
            "column_names": list(features),
            "column_sizes": [length * self._type(name).itemsize for name in features.values()],
            "compression": None,
            "format": "mds",
            "hashes": [],
            "size_limit": None,
            "version": 2,
        }

    def _config(self) -> bytes:
        return json.dumps(self._columns(), sort_keys=True).encode()


ROW_FORMAT = MDS
