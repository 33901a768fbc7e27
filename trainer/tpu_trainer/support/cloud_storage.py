"""Google's client of Cloud Storage, and listings with what TensorFlow's client discards: sizes and checksums."""

from __future__ import annotations

import base64
import os

import google.auth
from google.api_core.exceptions import Forbidden, GoogleAPIError, Unauthorized
from google.auth.credentials import AnonymousCredentials, Credentials
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError
from google.cloud import storage
from requests import RequestException

from tpu_trainer.support.errors import UsageError

_SCOPES = ["https://www.googleapis.com/auth/devstorage.read_write"]


def storage_client(credentials: Credentials | None = None, endpoint: str | None = None) -> storage.Client:
    """Returns a client.

    Args:
        credentials: None: TensorFlow's default credentials, or as there without any, which can read public buckets.
        endpoint: The base URL; None: Google's.
    """
    if credentials is None:
        try:
            credentials, _ = google.auth.default(scopes=_SCOPES)
        except DefaultCredentialsError:
            credentials = AnonymousCredentials()
    # For traces, the library would request the bucket's metadata from a thread that shares its connection.
    os.environ.setdefault("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")
    options = {"api_endpoint": endpoint} if endpoint else None
    # The project would own new buckets.
    return storage.Client(project="none", credentials=credentials, client_options=options)


def list_objects(folder: str) -> dict[str, tuple[int, str | None]]:
    """Lists the objects directly in the folder gs://bucket/….

    Returns:
        Maps each name to its size in bytes and its CRC-32C as 8 hex digits, or None if the object has no checksum.

    Raises:
        UsageError: If Cloud Storage refuses the request or does not answer.
    """
    bucket, _, path = folder.removeprefix("gs://").partition("/")
    prefix = f"{path.strip('/')}/" if path.strip("/") else ""
    fields = "items(name,size,crc32c),nextPageToken"
    try:
        blobs = list(storage_client().list_blobs(bucket, prefix=prefix, delimiter="/", fields=fields))
    except (GoogleAPIError, RequestException, GoogleAuthError) as error:
        remedy = "; the account needs the Storage Object Viewer role on the bucket"
        refused = isinstance(error, Forbidden | Unauthorized)
        raise UsageError(f"{folder}: cannot list the folder: {error}{remedy if refused else ''}") from error
    return {
        # The name is empty for an object that marks the folder itself.
        name: (blob.size, base64.b64decode(blob.crc32c).hex() if blob.crc32c else None)
        for blob in blobs
        if (name := blob.name.removeprefix(prefix))
    }
