"""Cloud Storage listings with the size and checksum of every object, which TensorFlow's client discards."""

from __future__ import annotations

import base64
from urllib.parse import quote

import google.auth
from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError
from google.auth.transport.requests import AuthorizedSession
from requests import RequestException
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

from tpu_trainer.support.errors import UsageError

_URL = "https://storage.googleapis.com/storage/v1/b/{bucket}/o"
_SCOPES = ["https://www.googleapis.com/auth/devstorage.read_only"]
_TIMEOUT = 60  # seconds
_RETRIES = Retry(
    total=8,
    backoff_factor=0.5,
    status_forcelist=(408, 429, 500, 502, 503, 504),
    allowed_methods=("GET",),
    raise_on_status=False,
)


def list_objects(folder: str) -> dict[str, tuple[int, str | None]]:
    """Lists the objects directly in the folder gs://bucket/….

    Returns:
        Maps each name to its size in bytes and its CRC-32C as 8 hex digits, or None if the object has no checksum.

    Raises:
        UsageError: If Cloud Storage refuses the request or does not answer.
    """
    bucket, _, path = folder.removeprefix("gs://").partition("/")
    prefix = f"{path.strip('/')}/" if path.strip("/") else ""
    query = {
        "prefix": prefix,
        "delimiter": "/",
        "fields": "items(name,size,crc32c),nextPageToken",
        "maxResults": "1000",
    }
    found: dict[str, tuple[int, str | None]] = {}
    with _session() as session:
        while True:
            try:
                response = session.get(
                    _URL.format(bucket=quote(bucket, safe="")), params=query, timeout=_TIMEOUT
                )
            except (RequestException, GoogleAuthError) as error:
                raise UsageError(f"{folder}: cannot list the folder ({error})") from error
            if not response.ok:
                remedy = "the account needs the Storage Object Viewer role on the bucket"
                raise UsageError(
                    f"{folder}: cannot list the folder: {response.status_code}: {response.text[:500]}"
                    + (f"; {remedy}" if response.status_code in (401, 403) else "")
                )
            page = response.json()
            for item in page.get("items", []):
                name = item["name"].removeprefix(prefix)
                if name:  # empty for an object that marks the folder itself
                    checksum = item.get("crc32c")
                    found[name] = (
                        int(item["size"]),
                        None if checksum is None else base64.b64decode(checksum).hex(),
                    )
            if "nextPageToken" not in page:
                return found
            query["pageToken"] = page["nextPageToken"]


def _session() -> AuthorizedSession:
    """Returns a session with TensorFlow's default credentials. Without any, it can read public buckets."""
    try:
        credentials, _ = google.auth.default(scopes=_SCOPES)
    except DefaultCredentialsError:
        credentials = AnonymousCredentials()
    session = AuthorizedSession(credentials)
    session.mount(_URL.partition("{")[0], HTTPAdapter(max_retries=_RETRIES))
    return session
