"""Files of sections with checksums, which hold the results of finished work units for later steps and `--resume`.

A file consists of its sections, an index (JSON), and a footer: the index's size, its CRC-32C and a magic number. The
index has the CRC-32C of each section, so a reader can read and check one section alone.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import struct
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

import google_crc32c
import numpy as np

from beam_pipeline.sources.opening import RangeFile
from beam_pipeline.support import filesystem
from beam_pipeline.support.buckets import RemoteObject
from beam_pipeline.support.errors import DataError

Content = TypeVar("Content")

_FOOTER = struct.Struct("<QI8s")  # the index's size, its CRC-32C, the magic number
_READ_AHEAD = 64 << 10  # reads small sections that are close together with one request

_MAGIC = b"TMSECT2\n"


class Section(NamedTuple):
    """A section's location in its file, in bytes, and its CRC-32C."""

    offset: int
    size: int
    crc: int


class SectionWriter:
    """Writes sections to a file."""

    def __init__(self, file: BinaryIO):
        self._file = file
        self._offset = 0

    def add(self, *parts: bytes | np.ndarray) -> Section:
        """Writes a section, whose bytes are those of all parts. Arrays are contiguous."""
        start, crc = self._offset, 0
        for data in map(_bytes_of, parts):
            self._file.write(data)
            crc = google_crc32c.extend(crc, data)
            self._offset += len(data)
        return Section(start, self._offset - start, crc)

    def end(self, index: dict[str, Any]) -> None:
        """Writes the index, which ends the file."""
        data = json.dumps(index, separators=(",", ":")).encode()
        self._file.write(data + _FOOTER.pack(len(data), google_crc32c.value(data), _MAGIC))


@contextlib.contextmanager
def create_sections(path: str) -> Iterator[SectionWriter]:
    """Creates a file of sections. It appears when the block ends. Concurrent attempts do not interfere."""
    folder, _, name = path.rpartition("/")
    temporary = filesystem.join(folder, "unfinished", f"{name}.{uuid.uuid4().hex}")
    with filesystem.create_whole(path, temporary) as file:
        yield SectionWriter(file)


def open_sections(path: str) -> BinaryIO:
    """Opens a file of sections for reading."""
    if filesystem.is_bucket(path):
        return RangeFile(RemoteObject(path), read_ahead=_READ_AHEAD)
    return filesystem.open_file(path)


def read_if_intact(
    path: str, identity: Mapping[str, Any], read: Callable[[BinaryIO, dict[str, Any]], Content]
) -> Content | None:
    """Reads a file of sections, unless it is missing, damaged or outdated.

    Args:
        identity: Entries that the index must contain.
        read: Reads the content, given the open file and its index.

    Returns:
        What `read` returns. None if there is no such file, its index lacks an entry of `identity`, or the index or a
        section that `read` reads is damaged.
    """
    if not filesystem.exists(path):
        return None
    try:
        with open_sections(path) as file:
            index = read_index(file, path)
            return read(file, index) if identity.items() <= index.items() else None
    except DataError:
        return None


def read_index(file: BinaryIO, path: str) -> dict[str, Any]:
    """Reads the index of a file of sections.

    Raises:
        DataError: If the index or the footer is missing or damaged.
    """
    size = file.seek(0, os.SEEK_END)
    if size < _FOOTER.size:
        raise DataError(f"{path}: truncated to {size} bytes")
    file.seek(size - _FOOTER.size)
    length, crc, magic = _FOOTER.unpack(file.read(_FOOTER.size))
    if magic != _MAGIC or length > size - _FOOTER.size:
        raise DataError(f"{path}: the footer of a file of sections is missing or damaged")
    file.seek(size - _FOOTER.size - length)
    data = file.read(length)
    if google_crc32c.value(data) != crc:
        raise DataError(f"{path}: the checksum of its index is wrong")
    return json.loads(data)


def read_section(file: BinaryIO, section: Section, path: str) -> bytes:
    """Reads the bytes of one section.

    Raises:
        DataError: If they are damaged.
    """
    file.seek(section.offset)
    data = file.read(section.size)
    _check(data, section, path)
    return data


def map_section(path: str, section: Section, *, needs_all: bool) -> memoryview:
    """Maps one section of a local file into memory.

    Args:
        path: The file.
        section: The section.
        needs_all: Reads and checks all of its bytes now. Otherwise they are read when they are used, and not checked.

    Raises:
        DataError: If they are damaged, or the file is shorter.
    """
    with Path(path).open("rb") as file:
        if os.fstat(file.fileno()).st_size < section.offset + section.size:
            raise _damage(section, path)
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    data = memoryview(mapped)[section.offset : section.offset + section.size]
    if needs_all:
        start = section.offset // mmap.PAGESIZE * mmap.PAGESIZE
        mapped.madvise(mmap.MADV_WILLNEED, start, section.offset + len(data) - start)
        _check(data, section, path)
    else:
        mapped.madvise(mmap.MADV_RANDOM)
    return data


def _check(data: bytes | memoryview, section: Section, path: str) -> None:
    if len(data) != section.size or google_crc32c.value(_bytes_of(data)) != section.crc:
        raise _damage(section, path)


def _damage(section: Section, path: str) -> DataError:
    return DataError(
        f"{path}: the {section.size} bytes at {section.offset} are damaged; --resume recomputes them"
    )


def _bytes_of(data: bytes | memoryview | np.ndarray) -> np.ndarray:
    """Returns contiguous data as uint8 [bytes], which all kinds of files and the checksum's library accept."""
    return np.frombuffer(data, np.uint8)
