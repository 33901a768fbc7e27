"""Google Cloud's REST APIs, with the credentials of this machine."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import google.auth
from google.auth.credentials import AnonymousCredentials, Credentials
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError
from google.auth.transport.requests import AuthorizedSession
from requests import RequestException, Response
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

from tpu_trainer.support.errors import CloudError, UsageError

_SCOPES = ["https://www.googleapis.com/auth/cloud-platform"]
_STORAGE_SCOPES = ["https://www.googleapis.com/auth/devstorage.read_write"]
_TIMEOUT = 30  # seconds
_TRANSIENT_STATUSES = (408, 429, 500, 502, 503, 504)
"""Statuses of transient errors, after which the request may or may not have been executed."""


class RefusedError(CloudError):
    """A permanent error of the API. `code` is the HTTP status, `reasons` are the API's names of the error."""

    def __init__(self, message: str, code: int, reasons: frozenset[str] = frozenset()) -> None:
        super().__init__(message)
        self.code = code
        self.reasons = reasons


class UnansweredError(CloudError):
    """No response, or a transient error: the request may or may not have been executed."""


def retries(*, backoff: float = 1) -> Retry:
    """Returns a policy of three retries, of GET and DELETE, with a wait that doubles from `backoff` seconds.

    POST is not idempotent: if the response was lost, the caller must first find out whether the request was executed.
    """
    return Retry(
        total=3,
        backoff_factor=backoff,
        status_forcelist=_TRANSIENT_STATUSES,
        allowed_methods=("GET", "DELETE"),
        raise_on_status=False,
    )


@dataclass(frozen=True, kw_only=True)
class Api:
    """Google Cloud's APIs: base URLs without a trailing slash, and a session."""

    session: Any
    """A session of `requests` that adds the credentials."""
    compute: str = "https://compute.googleapis.com"
    tpu: str = "https://tpu.googleapis.com"
    vertex: str = "https://{region}-aiplatform.googleapis.com"
    """Formatted by `connect`."""
    container: str = "https://container.googleapis.com"
    cluster: str = "https://{endpoint}"
    """Of a cluster of GKE."""
    storage: str = "https://storage.googleapis.com"
    verify: str | None = None
    """File with the certificates to trust; None: the system's."""

    def call(
        self, method: str, url: str, body: dict | None = None, *, missing_ok: bool = False
    ) -> dict | None:
        """Sends a request and returns the response's JSON; None for status 404 if `missing_ok`.

        Raises:
            RefusedError: If the API returns a permanent error, with its message.
            UnansweredError: If there is no response, or a transient error.
        """
        response = self._request(method, url, json=body)
        if missing_ok and response.status_code == 404:
            return None
        return _json(_checked(response, f"{method} {url}"), f"{method} {url}")

    def read_object(self, url: str, *, last_bytes: int | None = None) -> str | None:
        """Returns the text of a gs:// object, or of its last bytes; None if it is missing or empty.

        Raises the errors of `call`.
        """
        headers = {} if last_bytes is None else {"Range": f"bytes=-{last_bytes}"}
        response = self._request("GET", f"{self._object(url)}?alt=media", headers=headers)
        if response.status_code in (404, 416):  # 416: the object is empty
            return None
        return _checked(response, f"{url}: cannot be read").content.decode(errors="replace")

    def read_text(self, url: str) -> str | None:
        """Returns the text at `url`; None if it is missing. Raises the errors of `call`."""
        response = self._request("GET", url)
        if response.status_code == 404:
            return None
        return _checked(response, f"GET {url}").content.decode(errors="replace")

    def list_objects(self, prefix: str) -> list[str]:
        """Returns the URLs of the gs:// objects that start with `prefix`. Raises the errors of `call`."""
        bucket, _, name = prefix.removeprefix("gs://").partition("/")
        found: list[str] = []
        token = ""
        while True:
            query = urlencode({"prefix": name, "fields": "items/name,nextPageToken", "pageToken": token})
            page = self.call("GET", f"{self.storage}/storage/v1/b/{bucket}/o?{query}")
            found += [f"gs://{bucket}/{item['name']}" for item in page.get("items", [])]
            token = page.get("nextPageToken", "")
            if not token:
                return found

    def object_generation(self, url: str) -> str:
        """Returns the generation of a gs:// object, which every write changes; 0 if the object is missing."""
        found = self.call("GET", self._object(url), missing_ok=True)
        return "0" if found is None else found["generation"]

    def write_object(self, url: str, data: dict, *, generation: str) -> str:
        """Writes JSON to a gs:// object if its generation is `generation` (0: missing), and returns the new generation.

        Raises the errors of `call`: RefusedError with status 412 if the object has another generation.
        """
        bucket, _, name = url.removeprefix("gs://").partition("/")
        query = urlencode({"uploadType": "media", "name": name, "ifGenerationMatch": generation})
        place = f"{self.storage}/upload/storage/v1/b/{bucket}/o?{query}"
        response = self._request(
            "POST", place, data=json.dumps(data).encode(), headers={"Content-Type": "application/json"}
        )
        return _json(_checked(response, f"{url}: cannot be written"), url)["generation"]

    def delete_object(self, url: str, *, generation: str) -> None:
        """Deletes a gs:// object if its generation is `generation`; does nothing if it is missing."""
        self.call("DELETE", f"{self._object(url)}?ifGenerationMatch={generation}", missing_ok=True)

    def _object(self, url: str) -> str:
        bucket, _, name = url.removeprefix("gs://").partition("/")
        return f"{self.storage}/storage/v1/b/{bucket}/o/{quote(name, safe='')}"

    def _request(self, method: str, url: str, **options: Any) -> Response:
        try:
            return self.session.request(method, url, timeout=_TIMEOUT, verify=self.verify, **options)
        except RequestException as error:
            raise UnansweredError(f"{method} {url}: {error}") from error
        except GoogleAuthError as error:
            kind = UnansweredError if error.retryable else CloudError
            raise kind(f"{method} {url}: {error}") from error


def _checked(response: Response, what: str) -> Response:
    if response.ok:
        return response
    message = f"{what}: {response.status_code}: {_message(response)}"
    if response.status_code in _TRANSIENT_STATUSES or _exceeds_rate(response):
        raise UnansweredError(message)
    raise RefusedError(message, response.status_code, _reasons(response))


def _json(response: Response, what: str) -> dict:
    if not response.content:
        return {}
    try:
        return response.json()
    except ValueError as error:  # from a proxy, or truncated
        raise UnansweredError(f"{what}: the response is not JSON: {response.text[:200]!r}") from error


def _exceeds_rate(response: Response) -> bool:
    """Whether there were too many requests in a short time, for which Compute Engine returns status 403."""
    return response.status_code == 403 and bool(
        _reasons(response) & {"rateLimitExceeded", "userRateLimitExceeded"}
    )


def _reasons(response: Response) -> frozenset[str]:
    try:
        return frozenset(each.get("reason", "") for each in response.json()["error"]["errors"])
    except (ValueError, KeyError, TypeError, AttributeError):  # Kubernetes', or from a proxy
        return frozenset()


def _message(response: Response) -> str:
    try:
        found = response.json()
        # Kubernetes' errors have the message at the top.
        return found["message"] if "message" in found else found["error"]["message"]
    except (ValueError, KeyError, TypeError):  # from a proxy instead of the API
        return response.text[:500]


def connect(region: str) -> Api:
    """Returns the APIs with the application default credentials; raises UsageError if there are none."""
    try:
        credentials, _ = google.auth.default(scopes=_SCOPES)
    except GoogleAuthError as error:
        raise UsageError(f"{error} Or run: gcloud auth application-default login") from None
    return Api(session=_session(credentials), vertex=Api.vertex.format(region=region))


def connect_storage() -> Api:
    """Returns the API of Cloud Storage, with the credentials of TensorFlow's client or, as there, without any."""
    try:
        credentials, _ = google.auth.default(scopes=_STORAGE_SCOPES)
    except DefaultCredentialsError:
        credentials = AnonymousCredentials()
    return Api(session=_session(credentials))


def _session(credentials: Credentials) -> AuthorizedSession:
    session = AuthorizedSession(credentials)
    session.mount("https://", HTTPAdapter(max_retries=retries()))
    return session
