"""Files on Beam's file systems: all that are neither local nor in Cloud Storage.

Beam is imported when it is first used, because that takes seconds: a verb that reads a local dataset does not need it.
"""

from __future__ import annotations

import glob
from collections.abc import Sequence
from typing import TYPE_CHECKING, BinaryIO

from beam_pipeline.support.errors import FileError, UsageError

if TYPE_CHECKING:
    from apache_beam.io.filesystems import FileSystems
    from apache_beam.options.pipeline_options import PipelineOptions


def configure(options: PipelineOptions) -> None:
    """Sets the options of the file systems of this process (accounts, audit entries, …)."""
    _file_systems().set_options(options)


def check_scheme(url: str) -> None:
    """Checks that there is a file system for a URL. Raises UsageError if there is none."""
    try:
        _file_systems().get_filesystem(url)
    except ValueError as error:
        scheme, _, path = url.partition("://")
        if scheme == "file":
            raise UsageError(f"{url}: write the path alone, {path}") from error
        raise UsageError(
            f"{url}: there is no file system for {scheme}://; if this is a path on this machine, write ./{url}"
        ) from error


def match(pattern: str) -> list[tuple[str, int]]:
    """Returns (path, size in bytes) of the files that match a path or glob.

    Raises:
        OSError: If the file system cannot list them.
        ValueError: If there is no such file system.
    """
    from apache_beam.io.filesystem import BeamIOError

    try:
        files = _file_systems().match([pattern])[0].metadata_list
    except BeamIOError as error:
        raise FileError(f"{pattern}: {error}") from error
    return [(file.path, file.size_in_bytes) for file in files]


def size(path: str) -> int:
    """Returns a file's size in bytes."""
    return _file_systems().get_filesystem(path).metadata(path).size_in_bytes


def last_updated(path: str) -> float:
    """Returns when a file was last written, in seconds since 1970."""
    return _file_systems().get_filesystem(path).last_updated(path)


def exists(path: str) -> bool:
    return _file_systems().exists(path)


def open_file(path: str) -> BinaryIO:
    """Opens a file for reading, without decompression. The result is seekable."""
    from apache_beam.io.filesystem import CompressionTypes

    return _file_systems().open(path, compression_type=CompressionTypes.UNCOMPRESSED)


def create(path: str) -> BinaryIO:
    """Creates a file and opens it for writing, without compression."""
    from apache_beam.io.filesystem import CompressionTypes

    return _file_systems().create(path, compression_type=CompressionTypes.UNCOMPRESSED)


def rename(source: str, target: str) -> None:
    """Moves a file.

    Raises:
        OSError: If it fails. Beam reports some failures only in its exception's details, so this function checks that
            the target exists.
    """
    _file_systems().rename([source], [target])
    if not exists(target):
        raise FileError(f"{source} was renamed to {target}, but {target} does not exist")


def delete(paths: Sequence[str]) -> None:
    """Deletes files by their exact names."""
    _file_systems().delete([glob.escape(path) for path in paths])


def _file_systems() -> type[FileSystems]:
    from apache_beam.io.filesystems import FileSystems

    return FileSystems
