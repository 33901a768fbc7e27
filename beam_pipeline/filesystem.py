"""Files by path or URL (local, gs://, …): the few calls the pipeline needs, all through Beam's file systems."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from apache_beam.io.filesystem import BeamIOError, CompressionTypes
from apache_beam.io.filesystems import FileSystems
from apache_beam.io.gcp.gcsio import GcsIO, parse_gcs_path
from apache_beam.io.gcp.gcsio_retry import get_retry
from apache_beam.options.pipeline_options import PipelineOptions
from google.api_core.exceptions import RequestRangeNotSatisfiable
from requests.adapters import HTTPAdapter

if TYPE_CHECKING:
    from google.api_core.retry import Retry
    from google.cloud import storage

_CONNECTIONS = 64  # more are opened if so many are in use, and closed after one request
_ONE_CLIENT = threading.Lock()


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
        with _plain_errors(pattern):
            found = FileSystems.match([pattern])[0].metadata_list
    except BeamIOError as error:
        raise OSError(f"{pattern}: {error}") from error
    return sorted((file.path, file.size_in_bytes) for file in found)


def list_folder(folder: str) -> list[str]:
    """The paths of all files below a folder, sorted; [] where there is no such folder."""
    return [path for path, _ in match(join(folder, "**"))]


def open_file(path: str) -> BinaryIO:
    """Opens a file's own bytes for reading (nothing is decompressed); seekable."""
    with _plain_errors(path):
        return FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED)


class RemoteObject:
    """An object in Cloud Storage, read in ranges: a request for each, and nothing else.

    All ranges are of the generation that the first answer had; if the object was replaced since, reading fails.

    Args:
      path: gs://…
    """

    def __init__(self, path: str):
        self._path = path
        with _ONE_CLIENT:
            client, self._retry = _storage()
        bucket, name = parse_gcs_path(path)
        self._blob = client.bucket(bucket).blob(name)

    def size(self) -> int:
        """The object's size in bytes; takes a request of its own.

        Raises:
          OSError: if it cannot be read.
        """
        with _plain_errors(self._path):
            self._blob.reload(retry=self._retry)
        return self._blob.size

    def generation(self) -> int:
        """Identifies the object's content among all that were ever at this path; takes a request of its own.

        Raises:
          OSError: if it cannot be read.
        """
        self.size()
        return self._blob.generation

    def read(self, start: int, end: int) -> bytes:
        """The bytes [start, end), fewer if the object ends before.

        Raises:
          OSError: if it cannot be read.
        """
        with _plain_errors(self._path):
            try:
                # Cloud Storage knows the checksum of the whole object only.
                return self._blob.download_as_bytes(
                    start=start, end=end - 1, raw_download=True, checksum=None, retry=self._retry
                )
            except RequestRangeNotSatisfiable:
                return b""


def versions(paths: Sequence[str]) -> list[int]:
    """A number for each file that is another one if the file was written again.

    Raises:
      OSError: if one of them cannot be read.
    """
    with ThreadPoolExecutor(_CONNECTIONS) as pool:
        return list(pool.map(_version, paths))


def _version(path: str) -> int:
    if is_local(path):
        return Path(path).stat().st_mtime_ns
    if path.startswith("gs://"):
        return RemoteObject(path).generation()
    with _plain_errors(path):
        return int(1000 * FileSystems.get_filesystem(path).last_updated(path))


@functools.cache
def _storage() -> tuple[storage.Client, Retry]:
    """One client for the process, whose connections are kept open, with Beam's credentials and retries.

    Beam makes a client for each file that it opens, and so a connection, which costs as much as reading a small file.
    """
    options = FileSystems.get_filesystem("gs://")._pipeline_options or PipelineOptions()
    client = GcsIO(pipeline_options=options).client
    client._http.mount(client.api_endpoint, HTTPAdapter(pool_maxsize=_CONNECTIONS))
    return client, get_retry(options)


def read_bytes(path: str) -> bytes:
    with _plain_errors(path), open_file(path) as file:
        return file.read()


@contextlib.contextmanager
def create(path: str) -> Iterator[BinaryIO]:
    """A new file to write to; a local file's folder is made where it is missing."""
    make_parent(path)
    with (
        _plain_errors(path),
        FileSystems.create(path, compression_type=CompressionTypes.UNCOMPRESSED) as file,
    ):
        yield file


@contextlib.contextmanager
def create_whole(path: str, temporary: str | None = None) -> Iterator[BinaryIO]:
    """A new file that readers see complete or not at all: it is there when the block has ended well.

    Args:
      path: of the file; what was there is replaced.
      temporary: its name until it is complete, `path`.tmp if not given. In Cloud Storage there is no need of one: an
        object appears when its upload is finished, and a copy would be paid for.
    """
    if path.startswith("gs://"):
        with create(path) as file:
            yield file
        return
    temporary = temporary or path + ".tmp"
    try:
        with create(temporary) as file:
            yield file
        rename(temporary, path)
    except BaseException:
        delete([temporary])
        raise


def write_bytes(path: str, data: bytes) -> None:
    """Writes a whole file at once; readers see it complete or not at all."""
    with create_whole(path) as file:
        file.write(data)


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
    if not exists(target):
        raise OSError(f"{source} was renamed to {target}, but {target} is not there")


def exists(path: str) -> bool:
    with _plain_errors(path):
        return FileSystems.exists(path)


def delete(paths: Iterable[str]) -> None:
    """Deletes files and local folders; what is already gone is fine."""
    present = [path for path in paths if exists(path)]
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


@contextlib.contextmanager
def _plain_errors(path: str) -> Iterator[None]:
    """Makes OSErrors, which name the path, of what Google's clients raise: refusals, missing credentials, time-outs."""
    try:
        yield
    except Exception as error:
        if not type(error).__module__.startswith("google."):
            raise
        raise OSError(f"{path}: {_said_by(error)}") from error


def _said_by(error: Exception) -> str:
    """The service's own words, which a refused upload's error has only in the answer that it holds."""
    response = getattr(error, "response", None)
    try:
        return f"{response.status_code} {response.json()['error']['message']}"
    except (AttributeError, KeyError, TypeError, ValueError):  # no answer, or none in the usual form
        return str(error)
