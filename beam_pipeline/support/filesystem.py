"""Operations on files by path or URL (local, gs://, …).

Only `match` takes a pattern. All other functions take exact names, which may contain any characters.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from beam_pipeline.support import beam_files, buckets, extras, globs, local_files
from beam_pipeline.support.errors import UsageError
from beam_pipeline.support.file_errors import path_in_errors, plain_errors

if TYPE_CHECKING:
    from apache_beam.options.pipeline_options import PipelineOptions

_REQUESTS_AT_ONCE = 64
_SCHEME = re.compile("[A-Za-z][A-Za-z0-9+.-]*://")


def configure(options: PipelineOptions) -> None:
    """Makes this process access remote files according to Beam's options (accounts, audit entries, …).

    Call it before the first access.
    """
    beam_files.configure(options)


def join(folder: str, *names: str) -> str:
    """Joins a folder's path and names below it with `/`."""
    return "/".join([folder.rstrip("/"), *names])


def match(pattern: str, *, unfollowed_links: list[str] | None = None) -> list[tuple[str, int]]:
    """Returns the files that match a path or glob, as (path, size in bytes), sorted by path. See `globs`.

    If nothing matches a name with special characters, it is treated as an exact name.

    Args:
        pattern: The path or glob.
        unfollowed_links: Collects the local symbolic links to folders that `**` does not follow.

    Raises:
        OSError: If the file system cannot list them.
        ValueError: If there is no such file system.
    """
    if is_local(pattern):
        paths = globs.local_paths(pattern, [] if unfollowed_links is None else unfollowed_links)
        if not paths and Path(pattern).is_file():
            paths = {pattern}
        return [(path, os.stat(path).st_size) for path in sorted(paths)]  # noqa: PTH116 (as the rest)
    prefix = globs.literal_prefix(pattern)
    files: list[tuple[str, int]] = []
    with plain_errors(pattern):
        if prefix != pattern:
            is_match = globs.path_regex(pattern).fullmatch
            files = [entry for entry in _list_prefix(prefix) if is_match(entry[0])]
    is_whole_bucket = "/" not in pattern.partition("://")[2]
    if not files and not is_whole_bucket and (size := size_of(pattern)) is not None:
        files = [(pattern, size)]
    return files


def _list_prefix(prefix: str) -> list[tuple[str, int]]:
    """Returns the remote files whose URLs begin with `prefix`, as (URL, size in bytes), sorted by URL."""
    if is_bucket(prefix):
        return buckets.list_objects(prefix)
    folder = prefix[: prefix.rfind("/") + 1]
    return sorted(
        entry for entry in beam_files.match(glob.escape(folder) + "**") if entry[0].startswith(prefix)
    )


def list_files(
    folder: str, *, recursive: bool = True, unreadable: list[OSError] | None = None
) -> list[tuple[str, int]]:
    """Returns the files below a folder, as (path, size in bytes), sorted by path; [] if there is no such folder.

    Local symbolic links to folders are listed as files, and not followed.

    Args:
        folder: The folder.
        recursive: Whether to list the folders below it.
        unreadable: Collects the errors of local folders that cannot be listed. If it is None, they are raised.

    Raises:
        OSError: If the file system cannot list them.
    """
    if is_local(folder):
        return sorted(local_files.walk(folder, recursive, unreadable))
    prefix = folder.rstrip("/") + "/"
    with plain_errors(folder):
        files = _list_prefix(prefix)
    return [(path, size) for path, size in files if recursive or "/" not in path[len(prefix) :]]


def list_folder(folder: str) -> list[str]:
    """Returns the paths of all files below a folder, sorted; [] if there is no such folder."""
    return [path for path, _ in list_files(folder)]


def list_subfolders(folder: str) -> list[str]:
    """Returns the names of the folders directly below a folder, sorted; [] if there is no such folder."""
    if is_local(folder):
        return local_files.list_subfolders(folder)
    if is_bucket(folder):
        with plain_errors(folder):
            return buckets.list_subfolders(folder)
    prefix = folder.rstrip("/") + "/"
    subpaths = (path[len(prefix) :] for path in list_folder(folder))
    return sorted({subpath.partition("/")[0] for subpath in subpaths if "/" in subpath})


def size_of(path: str) -> int | None:
    """Returns a file's size in bytes; None if there is no such file."""
    if is_local(path):
        return Path(path).stat().st_size if Path(path).is_file() else None
    if not exists(path):
        return None
    with plain_errors(path):
        return beam_files.size(path)


def open_file(path: str) -> BinaryIO:
    """Opens a file for reading, without decompression. The result is seekable.

    Raises:
        OSError: If there is no such file, or it is not a regular file. A pipe would block until another process writes
            to it, and a device may be endless.
    """
    if is_local(path):
        return local_files.open_file(path)
    with plain_errors(path):
        return beam_files.open_file(path)


def versions(paths: Sequence[str]) -> list[list[int]]:
    """Returns numbers for each file that change if the file is written again, even if its time is set back afterwards.

    Raises:
        OSError: If one of them cannot be read.
    """
    if all(map(is_local, paths)):
        return list(map(_version, paths))
    with ThreadPoolExecutor(_REQUESTS_AT_ONCE) as pool:
        return list(pool.map(_version, paths))


def _version(path: str) -> list[int]:
    if is_local(path):
        return local_files.version(path)
    if is_bucket(path):
        return [buckets.RemoteObject(path).generation()]
    with plain_errors(path):
        return [int(1000 * beam_files.last_updated(path))]


def read_bytes(path: str) -> bytes:
    """Reads a file.

    Raises:
        OSError: If it cannot be read, also if it is larger than the memory, as a sparse file may be.
    """
    with plain_errors(path), open_file(path) as file:
        try:
            return file.read()
        except MemoryError as error:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), path) from error


@contextlib.contextmanager
def create(path: str) -> Iterator[BinaryIO]:
    """Creates a file and opens it for writing. Creates a local file's folder if it is missing.

    Does not follow a symbolic link at the path, which could lead out of the folder that a run may write.
    """
    make_parent(path)
    with plain_errors(path), (local_files if is_local(path) else beam_files).create(path) as file:
        yield file


@contextlib.contextmanager
def create_whole(
    path: str, temporary: str | None = None, *, move: Callable[[str, str], None] | None = None
) -> Iterator[BinaryIO]:
    """Creates a file that appears complete when the block ends. If the block raises, it does not appear.

    Args:
        path: The file's path. An existing file is replaced.
        temporary: The file's path until it is complete; by default `path` with ".tmp" appended. Ignored in Cloud
            Storage, where an object appears only when its upload is finished, and a copy would cost money.
        move: Moves the temporary file to `path`; `rename` by default.
    """
    if is_bucket(path):
        with create(path) as file:
            yield file
        return
    temporary = temporary or path + ".tmp"
    if is_local(temporary) and Path(temporary).is_symlink():
        Path(temporary).unlink()  # or else the link would become the file
    try:
        with path_in_errors(path, instead_of=temporary):
            with create(temporary) as file:
                yield file
            (move or rename)(temporary, path)
    except BaseException:
        delete([temporary])
        raise


@contextlib.contextmanager
def create_new(path: str, temporary: str) -> Iterator[BinaryIO]:
    """Like `create_whole`, but never replaces an existing file.

    Raises:
        FileExistsError: If `path` exists when the block ends.
    """
    if is_bucket(path):
        with plain_errors(path), buckets.create_new(path) as file:
            yield file
    else:
        with create_whole(path, temporary, move=_move_to_new) as file:
            yield file


def _move_to_new(source: str, target: str) -> None:
    """Moves a file to a name that must not exist. Atomic if the file system has hard links."""
    make_parent(target)
    if is_local(target) and local_files.move_to_new(source, target):
        return
    if exists(target):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
    rename(source, target)


def write_bytes(path: str, data: bytes) -> None:
    """Writes a file atomically: readers see it complete or not at all."""
    with create_whole(path) as file:
        file.write(data)


def rename(source: str, target: str) -> None:
    """Moves a file, and replaces an existing one. Atomic on local file systems.

    Raises:
        OSError: If it fails.
    """
    make_parent(target)
    if is_local(target):
        Path(source).replace(target)
    else:
        beam_files.rename(source, target)


def make_durable(paths: Iterable[str]) -> None:
    """Syncs local files and the three folders above each to disk, so that they survive a loss of power.

    Remote files are durable once they are written.

    Raises:
        OSError: If a file cannot be synced.
    """
    local_files.make_durable([path for path in paths if is_local(path)])


def exists(path: str) -> bool:
    if is_local(path):
        return Path(path).exists()
    with plain_errors(path):
        return beam_files.exists(path)


def delete(paths: Iterable[str]) -> None:
    """Deletes files by their exact names. Ignores files that do not exist.

    Raises:
        OSError: If one cannot be deleted.
    """
    paths = list(paths)
    remote = [path for path in paths if is_bucket(path)]
    if remote:
        with plain_errors(remote[0]):
            buckets.delete_objects(remote)
    for path in paths:
        if is_local(path):
            Path(path).unlink(missing_ok=True)
        elif not is_bucket(path) and exists(path):
            beam_files.delete([path])


def delete_folder(folder: str) -> None:
    """Deletes a folder and its content. Does nothing if it does not exist.

    Raises:
        OSError: If a part of it cannot be deleted.
    """
    delete(list_folder(folder))
    remove_empty_folders(folder)


def remove_empty_folders(folder: str) -> None:
    """Removes the empty folders among a local folder and those below it. Does nothing if it is remote."""
    if is_local(folder):
        for path, _, _ in os.walk(folder, topdown=False):
            remove_empty(path)


def remove_empty(folder: str) -> None:
    """Removes a local folder if it is empty. Does nothing if it is not empty, missing or remote."""
    if is_local(folder):
        local_files.remove_empty(folder)


def make_parent(path: str) -> None:
    if is_local(path):
        Path(path).parent.mkdir(parents=True, exist_ok=True)


def is_local(path: str) -> bool:
    """Returns whether a path is local, without `scheme://` at its beginning."""
    return "://" not in path or _SCHEME.match(path) is None


def is_bucket(path: str) -> bool:
    """Returns whether a path is in Cloud Storage."""
    return path.startswith(buckets.SCHEME)


def absolute(path: str) -> str:
    """Makes a local path absolute, because workers may run in another folder. URLs only lose trailing slashes.

    Raises:
        UsageError: If there is no file system for the URL, its packages are not installed, or it names no bucket or
            host.
    """
    if is_local(path):
        return os.path.abspath(path)  # noqa: PTH100 (keeps symbolic links)
    if not path.partition("://")[2].strip("/"):
        raise UsageError(f"{path}: names no bucket; write {path.partition('://')[0]}://BUCKET/FOLDER")
    if is_bucket(path):
        extras.require("gcp", path)
    elif path.startswith("s3://"):
        extras.require_boto3(path)
    else:
        beam_files.check_scheme(path)
    return path.rstrip("/")
