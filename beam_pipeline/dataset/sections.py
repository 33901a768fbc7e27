"""Files of checked sections: what a run keeps of a finished work unit, for its later steps and for `--resume`.

A file is its sections, one after the other, then an index (JSON), then the index's size and CRC-32C and a mark. Each
section has its own CRC-32C in the index, so that a reader can take and check one section alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO, NamedTuple, TypeVar

import google_crc32c

from beam_pipeline import filesystem
from beam_pipeline.errors import DataError
from beam_pipeline.sources.opening import RangeFile

Content = TypeVar("Content")

_END = struct.Struct("<QI8s")  # the index's size, its CRC-32C, the mark
_AHEAD = 64 << 10  # sections that are small and close together take one request

_MARK = b"TMSECT1\n"


class SectionError(DataError):
    """A file of sections that is cut off, damaged, or another's; the message names it."""


class Section(NamedTuple):
    """Where a section is in its file, in bytes, and the CRC-32C of its bytes."""

    offset: int
    size: int
    crc: int


class SectionWriter:
    """Adds sections to a file."""

    def __init__(self, file: BinaryIO):
        self._file = file
        self._offset = 0

    def add(self, data: bytes) -> Section:
        self._file.write(data)
        section = Section(self._offset, len(data), google_crc32c.value(data))
        self._offset += len(data)
        return section

    def end(self, index: dict[str, Any]) -> None:
        """Writes the index, which ends the file."""
        data = json.dumps(index, separators=(",", ":")).encode()
        self._file.write(data + _END.pack(len(data), google_crc32c.value(data), _MARK))


@contextlib.contextmanager
def create_sections(path: str) -> Iterator[SectionWriter]:
    """A new file of sections; readers see it complete or not at all. Attempts that overlap do not meet."""
    folder, _, name = path.rpartition("/")
    temporary = filesystem.join(folder, "unfinished", f"{name}.{uuid.uuid4().hex}")
    with filesystem.create_whole(path, temporary) as file:
        yield SectionWriter(file)


def open_sections(path: str) -> BinaryIO:
    """Opens a file of sections for reading."""
    if path.startswith("gs://"):
        return RangeFile(filesystem.RemoteObject(path), read_ahead=_AHEAD)
    return filesystem.open_file(path)


def read_kept(
    path: str, identity: Mapping[str, Any], read: Callable[[BinaryIO, dict[str, Any]], Content]
) -> Content | None:
    """What `read` makes of a file of sections and its index; None if there is no such file, its index does not hold
    all of `identity`, or a byte that is read is not as it was written."""
    if not filesystem.exists(path):
        return None
    try:
        with open_sections(path) as file:
            index = read_index(file, path)
            return read(file, index) if identity.items() <= index.items() else None
    except SectionError:
        return None


def read_index(file: BinaryIO, path: str) -> dict[str, Any]:
    """The index of a file of sections.

    Raises:
      SectionError: if the file does not end with an undamaged one.
    """
    size = file.seek(0, os.SEEK_END)
    if size < _END.size:
        raise SectionError(f"{path}: cut off after {size} bytes")
    file.seek(size - _END.size)
    length, crc, mark = _END.unpack(file.read(_END.size))
    if mark != _MARK or length > size - _END.size:
        raise SectionError(f"{path}: does not end as a file of sections does")
    file.seek(size - _END.size - length)
    data = file.read(length)
    if google_crc32c.value(data) != crc:
        raise SectionError(f"{path}: the checksum of its index is wrong")
    return json.loads(data)


def read_section(file: BinaryIO, section: Section, path: str) -> bytes:
    """One section's bytes.

    Raises:
      SectionError: if they are not those that were written.
    """
    file.seek(section.offset)
    data = file.read(section.size)
    if len(data) != section.size or google_crc32c.value(data) != section.crc:
        raise SectionError(
            f"{path}: the {section.size} bytes at {section.offset} are damaged; --resume recomputes them"
        )
    return data
