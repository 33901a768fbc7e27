"""The files of a folder: memory-mapped if it is local, otherwise read in ranges by fsspec."""

from __future__ import annotations

import errno
import mmap
import os
import posixpath
import stat
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple, Protocol

import numpy as np

from tokenmill_reader.errors import REMEDY, DatasetError

_RANGE_BYTES = 8 << 20
_NOT_FILES = (errno.EISDIR, errno.ENXIO)  # a folder, and a socket


class ListingEntry(NamedTuple):
    """The size and checksum of a file according to a listing; None if the listing does not have it."""

    size: int | None = None
    """Bytes."""
    crc32c: int | None = None
    """CRC-32C of the content."""


class Folder(Protocol):
    """A folder of files. Other programs may implement it for a storage of their own."""

    path: str
    is_local: bool

    def list_files(self, *, sizes: bool) -> Mapping[str, ListingEntry]:
        """Returns the files by name.

        Args:
            sizes: Whether to ask for each file's size if the listing does not have it.

        Raises:
            DatasetError: If there is no such folder.
        """

    def read(self, name: str) -> bytes | None:
        """Returns the content of a file, which may be in a folder above (`../name`); None if there is none.

        Raises:
            DatasetError: If it is not a regular file.
        """

    def join(self, name: str) -> str:
        """Returns the path of a file or folder, which may be in a folder above."""

    def stamp(self, name: str) -> tuple[int, ...] | None:
        """Returns the values that change with a mapped file: its size, modification time and inode. None if not local.

        Raises:
            FileNotFoundError: If there is no such file.
        """

    def map(self, name: str) -> np.ndarray:
        """Returns the content of a file, uint8[bytes], read-only. Raises FileNotFoundError."""

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Returns the bytes from the first to the end of each range. Raises FileNotFoundError."""


def normal_folder(path: str | os.PathLike[str]) -> str:
    """Returns one spelling of a folder, so that two of one are not taken for two.

    >>> normal_folder("./A//train/"), normal_folder("gs://b/A/train/")
    ('A/train', 'gs://b/A/train')
    """
    path = os.fspath(path)
    return path.rstrip("/") if "://" in path else os.path.normpath(path)


def open_folder(path: str | os.PathLike[str], storage_options: Mapping[str, Any]) -> Folder:
    """Returns the folder at a local path or a URL. Raises DatasetError for a URL without fsspec."""
    path = os.fspath(path)
    return RemoteFolder(path, storage_options) if "://" in path else LocalFolder(path)


class LocalFolder:
    """A local folder."""

    is_local = True

    def __init__(self, path: str) -> None:
        self.path = path
        self._absolute = os.path.abspath(path)  # noqa: PTH100 - the program may change its folder

    def list_files(self, *, sizes: bool) -> Mapping[str, ListingEntry]:
        try:
            if sizes:
                with os.scandir(self._absolute) as entries:
                    return {
                        entry.name: ListingEntry(entry.stat().st_size) for entry in entries if entry.is_file()
                    }
            return dict.fromkeys(os.listdir(self._absolute), ListingEntry())  # noqa: PTH208 - of 200,000 files
        except (FileNotFoundError, NotADirectoryError) as error:
            raise DatasetError(
                f"{self.path}: no such folder; give the folder of a split, such as OUT/train"
            ) from error

    def read(self, name: str) -> bytes | None:
        try:
            with self._open(name) as file:
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except MemoryError as error:  # a sparse file may have exabytes
            raise DatasetError(f"{self.join(name)}: too large for the memory; {REMEDY}") from error

    def _open(self, name: str) -> BinaryIO:
        """Opens a regular file. A pipe would block until another process writes to it, and a device may be endless."""
        path = os.path.join(self._absolute, name)  # noqa: PTH118 - pathlib takes as long as mmap
        try:
            file = open(path, "rb", buffering=0, opener=_without_blocking)  # noqa: SIM115
        except OSError as error:
            if error.errno in _NOT_FILES:
                raise DatasetError(f"{path}: not a file; {REMEDY}") from error
            raise
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            file.close()
            raise DatasetError(f"{path}: not a file; {REMEDY}")
        return file

    def join(self, name: str) -> str:
        return os.path.normpath(os.path.join(self.path, name))  # noqa: PTH118

    def stamp(self, name: str) -> tuple[int, ...] | None:
        status = os.stat(os.path.join(self._absolute, name))  # noqa: PTH116, PTH118 - called for each batch
        return status.st_size, status.st_mtime_ns, status.st_ino

    def map(self, name: str) -> np.ndarray:
        with self._open(name) as file:
            try:
                return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
            except ValueError:  # an empty file
                return np.empty(0, np.uint8)

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        content = self.map(name)
        return [content[start:end].tobytes() for start, end in ranges]


def _without_blocking(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


class RemoteFolder:
    """A folder that fsspec reads. The connection is made in each process that uses it."""

    is_local = False

    def __init__(self, path: str, storage_options: Mapping[str, Any]) -> None:
        self.path = path.rstrip("/")
        self._options = dict(storage_options)
        self._connected: tuple[int, Any, str] | None = None
        self._connection()

    def _connection(self) -> tuple[Any, str]:
        if self._connected is None or self._connected[0] != os.getpid():
            try:
                from fsspec.core import url_to_fs
            except ImportError as error:
                raise DatasetError(
                    f"{self.path}: a URL; install what reads it: pip install 'tokenmill-reader[remote]'"
                ) from error
            # A forked process must not use its parent's connection.
            self._connected = (os.getpid(), *url_to_fs(self.path, skip_instance_cache=True, **self._options))
        return self._connected[1:]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_connected": None}

    def list_files(self, *, sizes: bool) -> Mapping[str, ListingEntry]:
        files, root = self._connection()
        try:
            entries = files.ls(root, detail=True)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise DatasetError(
                f"{self.path}: no such folder; give the folder of a split, such as OUT/train"
            ) from error
        return {
            entry["name"].rstrip("/").rpartition("/")[2]: ListingEntry(entry.get("size"))
            for entry in entries
            if entry["type"] == "file"
        }

    def read(self, name: str) -> bytes | None:
        files, root = self._connection()
        try:
            return files.cat_file(_join_upwards(root, name))
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None

    def join(self, name: str) -> str:
        scheme, _, root = self.path.partition("://")
        return f"{scheme}://{_join_upwards(root, name)}"

    def stamp(self, name: str) -> tuple[int, ...] | None:
        return None  # it is copied, not mapped

    def map(self, name: str) -> np.ndarray:
        files, root = self._connection()
        size = files.size(posixpath.join(root, name))
        content = np.empty(size, np.uint8)
        ranges = [(start, min(size, start + _RANGE_BYTES)) for start in range(0, size, _RANGE_BYTES)]
        for (start, end), piece in zip(ranges, self.read_ranges(name, ranges), strict=True):
            content[start:end] = np.frombuffer(piece, np.uint8)
        return content

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        if not ranges:
            return []
        files, root = self._connection()
        starts, ends = (list(values) for values in zip(*ranges, strict=True))
        # File systems with asynchronous requests read the ranges concurrently.
        pieces = files.cat_ranges([posixpath.join(root, name)] * len(ranges), starts, ends)
        for start, end, piece in zip(starts, ends, pieces, strict=True):
            if isinstance(piece, Exception):
                raise piece
            if len(piece) != end - start:
                raise DatasetError(
                    f"{self.path}/{name}: only {len(piece)} of the bytes {start} to {end} came"
                )
        return pieces


def _join_upwards(root: str, name: str) -> str:
    """Joins a root and a name that may begin with `../`, which neither object stores nor HTTP resolve."""
    while name.startswith("../"):
        root, name = root.rstrip("/").rpartition("/")[0], name.removeprefix("../")
    return posixpath.join(root, name)
