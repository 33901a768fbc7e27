"""The few file operations the trainer needs, on local paths and on URLs such as gs://bucket/folder.

Local paths are handled without TensorFlow, whose import takes seconds, so that checks of a command's arguments
stay quick; URLs go through tf.io.gfile, which reads and writes them natively.
"""

from __future__ import annotations

import os
import posixpath
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


def is_url(path: str) -> bool:
    """Whether `path` names an object store or another remote file system."""
    return "://" in path


def _gfile() -> Any:
    import tensorflow as tf

    return tf.io.gfile


def join(folder: str, *names: str) -> str:
    """`folder/name/…`, for local paths and URLs alike; names may be or hold `..`."""
    path = "/".join([folder.rstrip("/") if folder != "/" else "", *names])
    if not is_url(path) or ".." not in path.split("/"):
        return path
    scheme, _, rest = path.partition("://")
    return (
        f"{scheme}://{posixpath.normpath(rest)}"  # an object's name is only a name: `..` leads nowhere there
    )


def is_file(path: str) -> bool:
    """Whether `path` is there and is a file."""
    return _gfile().exists(path) and not _gfile().isdir(path) if is_url(path) else Path(path).is_file()


def is_dir(path: str) -> bool:
    """Whether `path` is there and is a folder."""
    return _gfile().isdir(path) if is_url(path) else Path(path).is_dir()


def size(path: str) -> int:
    """Bytes in a file; OSError or TensorFlow's NotFoundError where there is none."""
    return _gfile().stat(path).length if is_url(path) else Path(path).stat().st_size


def list_names(folder: str) -> list[str]:
    """The names in `folder`, sorted; empty where there is no such folder."""
    if not is_dir(folder):
        return []
    if is_url(folder):
        return sorted(name.rstrip("/") for name in _gfile().listdir(folder))
    return sorted(entry.name for entry in Path(folder).iterdir())


@dataclass(frozen=True)
class Listed:
    """What a listing tells of a file: its bytes, and their CRC-32C as 8 hex digits; None if the listing has none."""

    size: int
    crc32c: str | None = None


def list_files(folder: str) -> dict[str, Listed]:
    """The files in `folder` by name, without its subfolders; empty where there is no such folder.

    On Cloud Storage this takes one request for a thousand files. tf.io.gfile would take more than one for each file.
    """
    if folder.startswith("gs://"):
        from tpu_trainer.cloud_storage import list_objects

        return {name: Listed(*found) for name, found in list_objects(folder).items()}
    if is_url(folder):
        names = [name for name in list_names(folder) if is_file(join(folder, name))]
        return {name: Listed(size(join(folder, name))) for name in names}
    if not is_dir(folder):
        return {}
    return {path.name: Listed(path.stat().st_size) for path in Path(folder).iterdir() if path.is_file()}


def make_dirs(folder: str) -> None:
    """Makes `folder` and its parents where they are missing."""
    if is_url(folder):
        _gfile().makedirs(folder)
    else:
        Path(folder).mkdir(parents=True, exist_ok=True)


def remove_file(path: str) -> None:
    """Removes a file, which must be there."""
    if is_url(path):
        _gfile().remove(path)
    else:
        Path(path).unlink()


def remove_tree(folder: str) -> None:
    """Removes `folder` and all in it; nothing happens where it is not there."""
    if not is_dir(folder):
        return
    if is_url(folder):
        _gfile().rmtree(folder)
    else:
        shutil.rmtree(folder)


def read_text(path: str) -> str:
    """The UTF-8 text of a file."""
    if is_url(path):
        with _gfile().GFile(path) as file:
            return file.read()
    return Path(path).read_text(encoding="utf-8")


def read_bytes(path: str) -> bytes:
    """The bytes of a file."""
    if is_url(path):
        with _gfile().GFile(path, "rb") as file:
            return file.read()
    return Path(path).read_bytes()


def write_text(path: str, text: str) -> None:
    """Writes a file so that readers see the old one or the whole new one, never a part."""
    if is_url(path):
        with _gfile().GFile(path, "w") as file:  # object stores show an object only when it is complete
            file.write(text)
        return
    temporary = Path(path + ".tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())  # else a machine that stops might keep the new name and not the text
    temporary.replace(path)


def append_text(path: str, text: str) -> None:
    """Adds `text` at the end of a file, which is made where it is missing."""
    if is_url(path):
        with _gfile().GFile(path, "a") as file:
            file.write(text)
        return
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(text)


def flush_tree(folder: str) -> None:
    """Waits until the files in `folder` are on the disk, so that what is written next cannot be there without them.

    Object stores hold an object that was written: nothing to do for URLs.
    """
    if is_url(folder):
        return
    for path in [Path(folder), *Path(folder).rglob("*")]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def copy_tree(source: str, target: str) -> None:
    """Copies the files of folder `source`, with its subfolders, into `target`; either may be a URL."""
    make_dirs(target)
    for name in list_names(source):
        if is_dir(join(source, name)):
            copy_tree(join(source, name), join(target, name))
        elif is_url(source) or is_url(target):
            _gfile().copy(join(source, name), join(target, name), overwrite=True)
        else:
            shutil.copyfile(join(source, name), join(target, name))


@contextmanager
def local_copy(folder: str) -> Iterator[str]:
    """`folder` as a local path, for libraries that open local files only; a URL's copy lives as long as the context."""
    if not is_url(folder):
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="tpu_trainer-") as temporary:
        copy_tree(folder, temporary)
        yield temporary
