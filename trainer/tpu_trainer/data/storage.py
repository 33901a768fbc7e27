"""Dataset folders at URLs, read by the client that also reads and writes a run's files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from tokenmill_reader.errors import DatasetError
from tokenmill_reader.files import ListingEntry
from tpu_trainer.support import files


@contextmanager
def _reached(path: str) -> Iterator[None]:
    """Context that reads a URL. Errors of the network and of permissions are DatasetErrors that say what to do.

    A file that does not exist is a FileNotFoundError, as on a disk.
    """
    import tensorflow as tf  # imported here: local datasets do not need it

    try:
        yield
    except tf.errors.NotFoundError as error:
        raise FileNotFoundError(path) from error
    except tf.errors.OpError as error:
        reason = " ".join(error.message.split())
        raise DatasetError(
            f"{path}: cannot be read ({reason}); check the address, the network and the permissions, or copy the "
            "dataset to a local disk"
        ) from error


class UrlFolder:
    """The reader's `Folder` at a URL that TensorFlow reads, such as gs://bucket/dataset/train."""

    is_local = False

    def __init__(self, path: str) -> None:
        self.path = path.rstrip("/")

    def list_files(self, *, sizes: bool) -> Mapping[str, ListingEntry]:
        with _reached(self.path):
            listing = files.list_files(self.path)
        if not listing:
            raise DatasetError(f"{self.path}: no such folder; give the folder of a split, such as OUT/train")
        return {
            name: ListingEntry(info.size, None if info.crc32c is None else int(info.crc32c, 16))
            for name, info in listing.items()
        }

    def read(self, name: str) -> bytes | None:
        path = self.join(name)
        with _reached(path):
            return files.read_bytes(path) if files.is_file(path) else None

    def join(self, name: str) -> str:
        return files.join(self.path, name)

    def stamp(self, name: str) -> None:
        return None  # it is copied, not mapped

    def map(self, name: str) -> np.ndarray:
        import tensorflow as tf

        path = self.join(name)
        with _reached(path):
            # A single request. `GFile` would make one for each half of a MiB.
            return np.frombuffer(tf.io.read_file(path).numpy(), np.uint8)

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        import tensorflow as tf

        path, parts = self.join(name), []
        with _reached(path), tf.io.gfile.GFile(path, "rb") as file:
            for start, end in ranges:
                file.seek(start)
                parts.append(file.read(end - start))
        return parts
