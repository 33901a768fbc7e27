"""Files on local disks, where Python's own functions are too strict, too lax, or lose data in a power failure."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from beam_pipeline.support.file_errors import path_in_errors

_SYNCS_AT_ONCE = 8
# The errors of file systems that cannot sync a folder, and of unreadable folders.
_NO_FOLDER_SYNC = (errno.EINVAL, errno.EBADF, errno.EOPNOTSUPP, errno.EACCES, errno.EPERM)
_NOT_EMPTY = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT, errno.ENOTDIR, errno.EBUSY)
_NO_HARD_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)


def walk(folder: str, recursive: bool, unreadable: list[OSError] | None) -> Iterator[tuple[str, int]]:
    """Yields the path and size of each file. See `filesystem.list_files`."""

    def handle_error(error: OSError) -> None:
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            return
        if unreadable is None:
            raise error
        unreadable.append(error)

    for parent, folders, names in os.walk(folder, onerror=handle_error):
        paths = [os.path.join(parent, name) for name in names]  # noqa: PTH118 (faster for very many files)
        if not recursive:
            folders.clear()
        paths += filter(os.path.islink, (os.path.join(parent, name) for name in folders))  # noqa: PTH118
        for path in paths:
            with contextlib.suppress(FileNotFoundError):  # deleted after the folder was read
                yield path, _size(path)


def _size(path: str) -> int:
    with contextlib.suppress(OSError):  # a symbolic link that cannot be followed
        status = os.stat(path)  # noqa: PTH116
        if stat.S_ISREG(status.st_mode):
            return status.st_size
    return os.lstat(path).st_size


def list_subfolders(folder: str) -> list[str]:
    """Returns the names of the folders directly below a folder, sorted; [] if there is no such folder."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if os.path.isdir(entry.path))  # noqa: PTH112
    except (FileNotFoundError, NotADirectoryError):
        return []


def open_file(path: str) -> BinaryIO:
    """Opens a regular file for reading. See `filesystem.open_file`."""
    if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 (faster for very many files)
        raise OSError(errno.EINVAL, "Is a pipe, a device or a folder, not a regular file", path)
    return Path(path).open("rb")


def version(path: str) -> list[int]:
    """Returns numbers that change if the file is written again. See `filesystem.versions`."""
    # A program can set mtime, but not ctime. Not the device: that of a network file system changes with each mount.
    status = os.stat(path)  # noqa: PTH116 (faster for very many files)
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def create(path: str) -> BinaryIO:
    """Creates a file and opens it for writing. Does not follow a symbolic link at the path."""
    return open(path, "wb", opener=_without_links)


def _without_links(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def move_to_new(source: str, target: str) -> bool:
    """Moves a file to a name that must not exist, atomically. Returns False if the file system has no hard links.

    Raises:
        FileExistsError: If the name exists.
    """
    try:
        os.link(source, target, follow_symlinks=False)
    except FileExistsError as error:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target) from error
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        return False
    Path(source).unlink()
    return True


def make_durable(paths: Sequence[str]) -> None:
    """Syncs files and the three folders above each to disk. See `filesystem.make_durable`."""
    folders = {str(folder) for path in paths for folder in islice(Path(path).parents, 3)}
    with ThreadPoolExecutor(_SYNCS_AT_ONCE) as pool:
        for _ in pool.map(_sync, paths):
            pass
    for folder in sorted(folders):
        try:
            _sync(folder)
        except OSError as error:
            if error.errno not in _NO_FOLDER_SYNC:
                raise


def _sync(path: str) -> None:
    with path_in_errors(path):
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)


def remove_empty(folder: str) -> None:
    """Removes a folder if it is empty. Does nothing if it is not empty or missing."""
    try:
        Path(folder).rmdir()
    except OSError as error:
        if error.errno not in _NOT_EMPTY:
            raise


def dangling_link(path: str) -> Path | None:
    """Returns which of a path and the folders above it is a symbolic link to nothing; None if none is."""
    return next(
        (link for link in (Path(path), *Path(path).parents) if link.is_symlink() and not link.exists()), None
    )
