"""Cloud Storage by exact names: listing by prefix, batched deletion, and writes that depend on an object's generation.

Beam's own file system treats names as patterns and has no conditional writes, but its client supports both.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, BinaryIO

from beam_pipeline.support.errors import FileError
from beam_pipeline.support.file_errors import plain_errors

if TYPE_CHECKING:
    from apache_beam.io.gcp.gcsio import GcsIO
    from apache_beam.options.pipeline_options import PipelineOptions
    from google.api_core.retry import Retry
    from google.cloud import storage

SCHEME = "gs://"
_URLS_PER_BATCH = 100  # the maximum of Cloud Storage
_BATCHES_AT_ONCE = 8
_PIECE_BYTES = 16 << 20
_CONNECTIONS = 64  # kept open; additional ones are closed after one request
_READ_ATTEMPTS = 10
_CLIENT_LOCK = threading.Lock()


@dataclass(frozen=True)
class ObjectVersion:
    """One version of an object."""

    data: bytes
    """Its bytes."""
    generation: int
    """The number of this version. Each write to the object gives it a new one."""
    updated: datetime
    """When it was written, by the service's clock."""


def list_objects(prefix: str) -> list[tuple[str, int]]:
    """Returns (URL, bytes) of all objects whose URLs start with `prefix`, sorted, without placeholders of folders."""
    objects = _beam().list_files(prefix)
    return sorted((url, size) for url, size in objects if not url.endswith("/"))


def list_subfolders(folder: str) -> list[str]:
    """Returns the names of the folders directly below `folder`, sorted."""
    bucket, _, prefix = (folder.rstrip("/") + "/").removeprefix(SCHEME).partition("/")
    storage_client, retry = client()
    pages = storage_client.list_blobs(bucket, prefix=prefix, delimiter="/", retry=retry).pages
    return sorted(subfolder[len(prefix) :].rstrip("/") for page in pages for subfolder in page.prefixes)


def delete_objects(urls: Sequence[str]) -> None:
    """Deletes objects, 100 per request and several requests at a time. Ignores objects that do not exist.

    Raises:
        OSError: If one cannot be deleted.
    """
    batches = [urls[start : start + _URLS_PER_BATCH] for start in range(0, len(urls), _URLS_PER_BATCH)]
    if not batches:
        return
    beam = _beam()
    with ThreadPoolExecutor(min(len(batches), _BATCHES_AT_ONCE)) as pool:
        for statuses in pool.map(beam.delete_batch, map(list, batches)):
            failed = [(url, status) for url, status in statuses if status]
            if failed:
                url, status = failed[0]
                raise FileError(f"{url}: cannot be deleted: Cloud Storage returns status {status}")


@contextlib.contextmanager
def create_new(url: str) -> Iterator[BinaryIO]:
    """Opens a new object for writing. It appears when the block ends without an error.

    Raises:
        FileExistsError: If the object already exists. It is not changed.
    """
    from google.cloud.storage.exceptions import InvalidResponse

    blob, retry = _blob(url)
    try:
        with blob.open(
            "wb", chunk_size=_PIECE_BYTES, if_generation_match=0, retry=retry, ignore_flush=True
        ) as file:
            yield file
    except InvalidResponse as error:
        if error.response.status_code != HTTPStatus.PRECONDITION_FAILED:
            raise
        raise FileExistsError(f"{url} exists already") from error


def write_if(url: str, data: bytes, generation: int) -> ObjectVersion | None:
    """Writes an object if its generation equals `generation`; 0 means that the object does not exist.

    Returns:
        The new version. None if the object has another generation. If a response was lost, this call may have written
        that generation itself.
    """
    from google.api_core.exceptions import PreconditionFailed

    blob, retry = _blob(url)
    try:
        blob.upload_from_string(data, "application/octet-stream", if_generation_match=generation, retry=retry)
    except PreconditionFailed:
        return None
    return ObjectVersion(data, blob.generation, blob.updated)


def read_version(url: str) -> ObjectVersion | None:
    """Returns the object's current version; None if it does not exist.

    Raises:
        OSError: If the object is replaced during every attempt to read it.
    """
    from google.api_core.exceptions import NotFound, PreconditionFailed

    blob, retry = _blob(url)
    for _ in range(_READ_ATTEMPTS):
        try:
            blob.reload(retry=retry)
            data = blob.download_as_bytes(if_generation_match=blob.generation, retry=retry)
        except NotFound:
            return None
        except PreconditionFailed:  # replaced between the two requests
            continue
        return ObjectVersion(data, blob.generation, blob.updated)
    raise FileError(f"{url}: is replaced faster than it can be read")


def delete_if(url: str, generation: int) -> bool:
    """Deletes an object if its generation equals `generation`. Returns whether the object no longer exists."""
    from google.api_core.exceptions import NotFound, PreconditionFailed

    blob, retry = _blob(url)
    try:
        blob.delete(if_generation_match=generation, retry=retry)
    except NotFound:
        return True
    except PreconditionFailed:
        return False
    return True


def service_time(url_prefix: str) -> datetime:
    """Returns the time by the service's clock, which sets `ObjectVersion.updated`. Writes and deletes an object."""
    url = f"{url_prefix}.time-{uuid.uuid4().hex}"
    probe = write_if(url, b"", 0)
    if probe is None:  # the response to the first attempt was lost, but the object exists
        probe = read_version(url)
    if probe is None:
        raise FileError(f"{url}: was written, but does not exist")
    delete_if(url, probe.generation)
    return probe.updated


class RemoteObject:
    """An object in Cloud Storage that is read in ranges, with one request for each.

    All ranges are of the generation in the first response. If the object is replaced, reading fails.
    """

    def __init__(self, url: str):
        self._url = url
        self._blob, self._retry = _blob(url)

    def size(self) -> int:
        """Requests the object's size in bytes.

        Raises:
            OSError: If it cannot be read.
        """
        with plain_errors(self._url):
            self._blob.reload(retry=self._retry)
        return self._blob.size

    def generation(self) -> int:
        """Requests the object's generation, a number that changes each time the object is replaced.

        Raises:
            OSError: If it cannot be read.
        """
        self.size()
        return self._blob.generation

    def read(self, start: int, end: int) -> bytes:
        """Reads the bytes [start, end), fewer if the object ends before.

        Raises:
            OSError: If they cannot be read.
        """
        from google.api_core.exceptions import RequestRangeNotSatisfiable

        with plain_errors(self._url):
            try:
                # No checksum, because Cloud Storage has only that of the whole object.
                return self._blob.download_as_bytes(
                    start=start, end=end - 1, raw_download=True, checksum=None, retry=self._retry
                )
            except RequestRangeNotSatisfiable:
                return b""


def client() -> tuple[storage.Client, Retry]:
    """Returns the process's only client, with Beam's credentials and retries. It keeps its connections open.

    Beam creates a client, and so a connection, for each file that it opens. That takes as long as reading a small file.
    """
    with _CLIENT_LOCK:
        return _client()


@functools.cache
def _client() -> tuple[storage.Client, Retry]:
    # Imported late: Beam takes seconds, and a verb that reads a local dataset does not need it.
    from apache_beam.io.gcp.gcsio import GcsIO
    from apache_beam.io.gcp.gcsio_retry import get_retry
    from requests.adapters import HTTPAdapter

    options = _options()
    storage_client = GcsIO(pipeline_options=options).client
    storage_client._http.mount(storage_client.api_endpoint, HTTPAdapter(pool_maxsize=_CONNECTIONS))
    return storage_client, get_retry(options)


def _options() -> PipelineOptions:
    from apache_beam.io.filesystems import FileSystems
    from apache_beam.options.pipeline_options import PipelineOptions

    return FileSystems.get_filesystem(SCHEME)._pipeline_options or PipelineOptions()


def _beam() -> GcsIO:
    from apache_beam.io.gcp.gcsio import GcsIO

    return GcsIO(client()[0], _options())


def _blob(url: str) -> tuple[storage.Blob, Retry]:
    storage_client, retry = client()
    bucket, _, name = url.removeprefix(SCHEME).partition("/")
    return storage_client.bucket(bucket).blob(name), retry
