"""Files by path or URL (local, gs://, …): the few calls the pipeline needs, all through Beam's file systems."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from apache_beam.io.filesystem import BeamIOError, CompressionTypes
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions


def configure(options: PipelineOptions) -> None:
    """Makes this process reach remote files as Beam's options say (accounts, audit entries, …), from the first one."""
    FileSystems.set_options(options)


def join(folder: str, *names: str) -> str:
    """The path of something below `folder`, with `/` between."""
    return "/".join([folder.rstrip("/"), *names])


def match(pattern: str) -> list[tuple[str, int]]:
    """The files that match a path or glob, as (path, size in bytes), sorted by path; [] where none do.

    Raises:
      OSError: where the file system cannot list them.
      ValueError: where there is no such file system.
    """
    if is_local(pattern) and Path(pattern).is_dir():
        return []  # Beam takes a folder's path for a file
    try:
        found = FileSystems.match([pattern])[0].metadata_list
    except BeamIOError as error:
        raise OSError(f"{pattern}: {error}") from error
    return sorted((file.path, file.size_in_bytes) for file in found)


def list_folder(folder: str) -> list[str]:
    """The paths of all files below a folder, sorted; [] where there is no such folder."""
    return [path for path, _ in match(join(folder, "**"))]


def open_file(path: str) -> BinaryIO:
    """Opens a file's own bytes for reading (nothing is decompressed); seekable."""
    return FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED)


def read_bytes(path: str) -> bytes:
    with open_file(path) as file:
        return file.read()


def create(path: str) -> BinaryIO:
    """Opens a new file for writing; a local file's folder is made where it is missing."""
    make_parent(path)
    return FileSystems.create(path, compression_type=CompressionTypes.UNCOMPRESSED)


def write_bytes(path: str, data: bytes) -> None:
    """Writes a whole file at once; readers see it complete or not at all."""
    temporary = path + ".tmp"
    with create(temporary) as file:
        file.write(data)
    rename(temporary, path)


def rename(source: str, target: str) -> None:
    """Moves a file; on local file systems atomically, replacing what was there.

    Beam's own rename reports some failures only in its exception's details, and a failed one must never
    pass for a written file: so the target is looked for afterwards.
    """
    make_parent(target)
    if is_local(target):
        Path(source).replace(target)
        return
    FileSystems.rename([source], [target])
    if not FileSystems.exists(target):
        raise OSError(f"{source} was renamed to {target}, but {target} is not there")


def exists(path: str) -> bool:
    return FileSystems.exists(path)


def delete(paths: Iterable[str]) -> None:
    """Deletes files and local folders; what is already gone is fine."""
    present = [path for path in paths if FileSystems.exists(path)]
    if present:
        FileSystems.delete(present)


def delete_folder(folder: str) -> None:
    """Deletes a folder with all that is in it; one that is already gone is fine.

    Raises:
      OSError: where some of it is still there afterwards; of failures in buckets Beam only logs a warning.
    """
    if is_local(folder):
        delete([folder])
    elif list_folder(folder):
        FileSystems.delete([folder + "/"])  # lists once, and deletes many at a time
        left = list_folder(folder)
        if left:
            raise OSError(f"{folder} was deleted, but {left[0]} is still there")


def make_parent(path: str) -> None:
    if is_local(path):
        Path(path).parent.mkdir(parents=True, exist_ok=True)


def is_local(path: str) -> bool:
    """Whether a path needs no remote file system: it has no `scheme://`."""
    return "://" not in path


def absolute(path: str) -> str:
    """Local paths made absolute, since workers may run in another folder; URLs as they are."""
    return os.path.abspath(path) if is_local(path) else path.rstrip("/")  # noqa: PTH100 (keeps symbolic links)
