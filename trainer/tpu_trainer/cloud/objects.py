"""The objects of a run's folder in Cloud Storage."""

from __future__ import annotations

import json

from google.api_core.exceptions import NotFound, RequestRangeNotSatisfiable
from google.auth.credentials import Credentials
from google.cloud import storage
from google.cloud.storage.exceptions import DataCorruption

from tpu_trainer.cloud.google import TIMEOUT, UnansweredError, answered
from tpu_trainer.support.cloud_storage import storage_client


class Objects:
    """Objects by their gs:// URLs. Each request is sent once; all methods raise the errors of `google.answered`.

    The arguments are those of `storage_client`.
    """

    def __init__(self, credentials: Credentials | None = None, endpoint: str | None = None) -> None:
        self._client = storage_client(credentials, endpoint)

    def read(self, url: str, *, last_bytes: int | None = None) -> str | None:
        """Returns the text of an object, or of its last bytes; None if it is missing or empty."""
        start = None if last_bytes is None else -last_bytes
        with answered():
            try:
                data = self._blob(url).download_as_bytes(start=start, retry=None, timeout=TIMEOUT)
            except (NotFound, RequestRangeNotSatisfiable):  # the latter: it is empty
                return None
            except DataCorruption as error:
                raise UnansweredError(f"{url}: {error}") from error
        return data.decode(errors="replace")

    def list(self, prefix: str) -> list[str]:
        """Returns the URLs of the objects that start with `prefix`."""
        bucket, _, name = prefix.removeprefix("gs://").partition("/")
        with answered():
            blobs = self._client.list_blobs(
                bucket, prefix=name, fields="items/name,nextPageToken", retry=None, timeout=TIMEOUT
            )
            return [f"gs://{bucket}/{blob.name}" for blob in blobs]

    def generation(self, url: str) -> int:
        """Returns the generation of an object, which every write changes; 0 if the object is missing."""
        blob = self._blob(url)
        with answered():
            try:
                blob.reload(retry=None, timeout=TIMEOUT)
            except NotFound:
                return 0
        return blob.generation

    def write(self, url: str, data: dict, *, generation: int) -> int:
        """Writes JSON to an object if its generation is `generation`, and returns the new generation.

        Raises RefusedError with status 412 if the object has another generation.
        """
        blob = self._blob(url)
        with answered():
            blob.upload_from_string(
                json.dumps(data),
                content_type="application/json",
                if_generation_match=generation,
                retry=None,
                timeout=TIMEOUT,
            )
        return blob.generation

    def delete(self, url: str, *, generation: int) -> None:
        """Deletes an object if its generation is `generation`; does nothing if it is missing."""
        with answered():
            try:
                self._blob(url).delete(if_generation_match=generation, retry=None, timeout=TIMEOUT)
            except NotFound:
                return

    def _blob(self, url: str) -> storage.Blob:
        return storage.Blob.from_uri(url, client=self._client)
