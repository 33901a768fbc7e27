"""Dataset folders at URLs, read by the client that also reads and writes a run's files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tokenmill_reader.errors import DatasetError
from tokenmill_reader.files import ListingEntry
from tpu_trainer.support import files


class UrlFolder:
    """The reader's `Folder` at a URL that TensorFlow reads, such as gs://bucket/dataset/train."""

    is_local = False

    def __init__(self, path: str) -> None:
        self.path = path.rstrip("/")

    def list_files(self, *, sizes: bool) -> Mapping[str, ListingEntry]:
        listing = files.list_files(self.path)
        if not listing:
            raise DatasetError(f"{self.path}: no such folder; give the folder of a split, such as OUT/train")
        return {
            name: ListingEntry(info.size, None if info.crc32c is None else int(info.crc32c, 16))
            for name, info in listing.items()
        }

    def read(self, name: str) -> bytes | None:
        path = self.join(name)
        return files.read_bytes(path) if files.is_file(path) else None

    def join(self, name: str) -> str:
        return files.join(self.path, name)

    def stamp(self, name: str) -> None:
        return None  # it is copied, not mapped

    def map(self, name: str) -> np.ndarray:
        import tensorflow as tf  # imported here: local datasets do not need it

        try:
            # A single request. `GFile` would make one for each half of a MiB.
            return np.frombuffer(tf.io.read_file(self.join(name)).numpy(), np.uint8)
        except tf.errors.NotFoundError as error:
            raise FileNotFoundError(self.join(name)) from error

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        import tensorflow as tf

        parts = []
        try:
            with tf.io.gfile.GFile(self.join(name), "rb") as file:
                for start, end in ranges:
                    file.seek(start)
                    parts.append(file.read(end - start))
        except tf.errors.NotFoundError as error:
            raise FileNotFoundError(self.join(name)) from error
        return parts
