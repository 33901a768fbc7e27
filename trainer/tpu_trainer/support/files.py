"""File operations on local paths and on URLs such as gs://bucket/folder.

Local paths do not need TensorFlow: importing it takes seconds, which would slow down argument checks. URLs go through
tf.io.gfile.
"""

from __future__ import annotations

import errno
import os
import posixpath
import shutil
import tempfile
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import google_crc32c

from tpu_trainer.support.errors import UsageError
from tpu_trainer.support.extras import require_gcp


def is_url(path: str) -> bool:
    """Whether `path` is on an object store or another remote file system."""
    return "://" in path


def _gfile(path: str) -> Any:
    """Returns TensorFlow's file functions; raises UsageError if they cannot read URLs of this kind."""
    import tensorflow as tf

    scheme = path.partition("://")[0] if is_url(path) else ""
    kinds = tf.io.gfile.get_registered_schemes()
    if scheme not in kinds:
        known = ", ".join(sorted(f"{each}://" for each in kinds if each not in ("", "ram")))
        raise UsageError(
            f"{path}: a URL of a kind that the trainer cannot read ({known} are possible); copy the folder to a disk "
            "or to a bucket of Cloud Storage, and give that path"
        )
    return tf.io.gfile


def join(folder: str, *names: str) -> str:
    """Joins path components for local paths and URLs. Names may contain `..`; an empty folder is the current one."""
    path = "/".join([folder.rstrip("/"), *names] if folder else names)
    if not is_url(path) or ".." not in path.split("/"):
        return path
    scheme, _, object_path = path.partition("://")
    # Object stores do not resolve `..` in an object's name.
    return f"{scheme}://{posixpath.normpath(object_path)}"


def is_file(path: str) -> bool:
    """Whether `path` exists and is a file."""
    return (
        _gfile(path).exists(path) and not _gfile(path).isdir(path) if is_url(path) else Path(path).is_file()
    )


def is_dir(path: str) -> bool:
    """Whether `path` exists and is a folder."""
    return _gfile(path).isdir(path) if is_url(path) else Path(path).is_dir()


def size(path: str) -> int:
    """Returns the size of a file in bytes.

    Raises:
        OSError: If a local file does not exist. URLs raise TensorFlow's NotFoundError instead.
    """
    return _gfile(path).stat(path).length if is_url(path) else Path(path).stat().st_size


def list_names(folder: str) -> list[str]:
    """Returns the sorted names in `folder`, or an empty list if the folder does not exist."""
    if not is_dir(folder):
        return []
    if is_url(folder):
        return sorted(name.rstrip("/") for name in _gfile(folder).listdir(folder))
    return sorted(entry.name for entry in Path(folder).iterdir())


@dataclass(frozen=True)
class FileInfo:
    """A file's entry in a listing."""

    size: int
    """Bytes."""
    crc32c: str | None = None
    """CRC-32C of the content as 8 hex digits; None if the listing does not include it."""


def list_files(folder: str, names: Container[str] | None = None) -> dict[str, FileInfo]:
    """Returns the files in `folder`, or those of `names`, by name, without subfolders.

    Empty if the folder does not exist. With `names`, other files may appear and disappear meanwhile.

    On Cloud Storage this takes one request per thousand files; tf.io.gfile would need several per file.

    Raises:
        UsageError: If Cloud Storage's client is not installed.
    """
    if folder.startswith("gs://"):
        require_gcp(folder)
        from tpu_trainer.support.cloud_storage import list_objects

        objects = list_objects(folder).items()
        return {name: FileInfo(*entry) for name, entry in objects if names is None or name in names}
    paths = {name: join(folder, name) for name in list_names(folder) if names is None or name in names}
    return {name: FileInfo(size(path)) for name, path in paths.items() if is_file(path)}


def list_checksums(
    folder: str, names: Container[str] | None = None, *, read: Container[str] | None = None
) -> dict[str, FileInfo]:
    """Returns the files in `folder`, or those of `names`, as `list_files` does, each with its checksum.

    On Cloud Storage the listing has the checksums; other files are read, or, with `read`, only those that it contains.
    """
    return {
        name: replace(info, crc32c=_crc32c(join(folder, name)))
        if info.crc32c is None and (read is None or name in read)
        else info
        for name, info in list_files(folder, names).items()
    }


def _crc32c(path: str) -> str:
    checksum = google_crc32c.Checksum()
    with _gfile(path).GFile(path, "rb") if is_url(path) else Path(path).open("rb") as file:
        while block := file.read(1 << 22):
            checksum.update(block)
    return checksum.digest().hex()


def make_dirs(folder: str) -> None:
    """Creates `folder` and its parents if they do not exist."""
    if is_url(folder):
        _gfile(folder).makedirs(folder)
    else:
        Path(folder).mkdir(parents=True, exist_ok=True)


def remove_file(path: str) -> None:
    """Removes a file, which must exist."""
    if is_url(path):
        _gfile(path).remove(path)
    else:
        Path(path).unlink()


def remove_tree(folder: str) -> None:
    """Removes `folder` and its contents. Does nothing if it does not exist."""
    if not is_dir(folder):
        return
    if is_url(folder):
        _gfile(folder).rmtree(folder)
    else:
        shutil.rmtree(folder)


def read_text(path: str) -> str:
    """Returns the content of a UTF-8 text file."""
    if is_url(path):
        with _gfile(path).GFile(path) as file:
            return file.read()
    return Path(path).read_text(encoding="utf-8")


def read_bytes(path: str) -> bytes:
    """Returns the content of a file as bytes."""
    if is_url(path):
        with _gfile(path).GFile(path, "rb") as file:
            return file.read()
    return Path(path).read_bytes()


def write_text(path: str, text: str) -> None:
    """Writes a text file atomically: readers see either the old content or all of the new."""
    if is_url(path):
        with _gfile(path).GFile(path, "w") as file:  # object stores publish complete objects only
            file.write(text)
        return
    temporary = Path(path + ".tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())  # otherwise a crash may keep the new name but lose the text
    temporary.replace(path)


def check_writable(path: str) -> None:
    """Checks that `write_text` can write a local file; does nothing for URLs.

    Raises:
        OSError: If it cannot.
    """
    if is_url(path):
        return
    if Path(path).is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a folder", path)
    temporary = Path(path + ".tmp")
    temporary.touch()
    temporary.unlink()


def append_text(path: str, text: str) -> None:
    """Appends `text` to a file, which is created if it does not exist."""
    if is_url(path):
        with _gfile(path).GFile(path, "a") as file:
            file.write(text)
        return
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(text)


def flush(paths: Iterable[str]) -> None:
    """Flushes files or folders to disk, so that later writes cannot survive a crash without them.

    Does nothing for URLs: objects are durable once written.
    """
    for path in paths:
        if not is_url(path):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def copy_tree(source: str, target: str) -> None:
    """Copies the files and subfolders of `source` into `target`, each file atomically. Either may be a URL."""
    make_dirs(target)
    for name in list_names(source):
        if is_dir(join(source, name)):
            copy_tree(join(source, name), join(target, name))
        elif is_url(source) or is_url(target):
            _gfile(target).copy(join(source, name), join(target, name), overwrite=True)
        else:
            temporary = Path(join(target, name + ".tmp"))
            shutil.copyfile(join(source, name), temporary)
            temporary.replace(join(target, name))


@contextmanager
def local_copy(folder: str) -> Iterator[str]:
    """Yields a local path of `folder`, for libraries that read only local files.

    A URL is copied to a temporary folder, which is deleted when the context ends.
    """
    if not is_url(folder):
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="tpu_trainer-") as temporary:
        copy_tree(folder, temporary)
        yield temporary
