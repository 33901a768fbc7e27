"""TFRecord files of `tf.Example` records."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import BinaryIO

import numpy as np

from beam_pipeline.dataset.encoders import encode_rows
from beam_pipeline.dataset.records import decode_frames, max_record_bytes, read_frames
from beam_pipeline.formats.base import RowFormat
from beam_pipeline.rows.blocks import RowBlock

_VALUES_PER_PIECE = 1 << 18  # encoding needs about 20 bytes per value of a feature


class TFRecord(RowFormat):
    """Rows as TFRecord files of `tf.Example` records."""

    name = "tfrecord"
    sequential = True
    has_offsets = True

    def encode(self, block: RowBlock) -> Iterator[bytes | np.ndarray]:
        form = self.form
        has_positions = not {"segment_ids", "position_ids"}.isdisjoint(form.features)
        max_value = max(form.vocab_size - 1, form.max_length if has_positions else 1)
        rows = max(1, _VALUES_PER_PIECE // form.max_length)
        for start in range(0, len(block), rows):
            piece = block.take(slice(start, start + rows))
            yield encode_rows(piece, features=form.features, max_value=max_value)

    def decode(
        self, file: BinaryIO, path: str, first: int = 0, count: int | None = None
    ) -> Iterator[dict[str, np.ndarray]]:
        shape = {"max_length": self.form.max_length, "features": self.form.features}
        frames = read_frames(file, path, max_record_bytes(**shape))
        end = None if count is None else first + count
        yield from decode_frames(islice(frames, first, end), **shape)


ROW_FORMAT = TFRecord
