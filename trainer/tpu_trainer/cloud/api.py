"""Google Cloud's REST interfaces, with the credentials of the machine that this runs on."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import google.auth
from google.auth.exceptions import GoogleAuthError
from google.auth.transport.requests import AuthorizedSession
from requests import RequestException, Response
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

from tpu_trainer.errors import CloudError, UsageError

_SCOPES = ["https://www.googleapis.com/auth/cloud-platform"]
_TIMEOUT = 30  # seconds
_FOR_NOW = (408, 429, 500, 502, 503, 504)
"""Statuses that may be followed by another answer, and that do not tell whether the request was carried out."""


class RefusedError(CloudError):
    """The interface's answer is an error that would come again. `code` is the HTTP status."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class UnansweredError(CloudError):
    """No answer, or one that is an error for now: the request may have been carried out, or not."""


def retries(*, backoff: float = 1) -> Retry:
    """Three, for what can be asked twice without harm, with a wait that doubles from `backoff` seconds.

    POST is not among it: a request whose answer was lost may have been carried out. Its caller looks that up first.
    """
    return Retry(
        total=3,
        backoff_factor=backoff,
        status_forcelist=_FOR_NOW,
        allowed_methods=("GET", "DELETE"),
        raise_on_status=False,
    )


@dataclass(frozen=True, kw_only=True)
class Api:
    """Where the interfaces are, and who asks.

    Attributes:
      session: of `requests`, adding the credentials.
      tpu, vertex, storage: without a slash at the end; `vertex` is a region's.
    """

    session: Any
    tpu: str = "https://tpu.googleapis.com"
    vertex: str = "https://{region}-aiplatform.googleapis.com"
    storage: str = "https://storage.googleapis.com"

    def call(
        self, method: str, url: str, body: dict | None = None, *, missing_ok: bool = False
    ) -> dict | None:
        """The interface's answer; None if that is 404 and `missing_ok`.

        Raises:
            RefusedError: It refuses, with its message.
            UnansweredError: There is no answer.
        """
        response = self._request(method, url, json=body)
        if missing_ok and response.status_code == 404:
            return None
        return _json(_checked(response, f"{method} {url}"), f"{method} {url}")

    def read_object(self, url: str, *, last_bytes: int | None = None) -> str | None:
        """The text of a gs:// object, or its end; None if there is none. Raises what `call` raises."""
        headers = {} if last_bytes is None else {"Range": f"bytes=-{last_bytes}"}
        response = self._request("GET", f"{self._object(url)}?alt=media", headers=headers)
        if response.status_code in (404, 416):  # 416: it is empty
            return None
        return _checked(response, f"{url}: cannot be read").content.decode(errors="replace")

    def list_objects(self, prefix: str) -> list[str]:
        """The URLs of the gs:// objects whose URLs start with `prefix`. Raises what `call` raises."""
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
        """The generation of a gs:// object, which every write changes; 0 if there is none."""
        found = self.call("GET", self._object(url), missing_ok=True)
        return "0" if found is None else found["generation"]

    def write_object(self, url: str, data: dict, *, generation: str) -> str:
        """Writes JSON to a gs:// object if `generation` is its own, 0 being none, and returns the new one.

        Raises what `call` raises; the status of a RefusedError is 412 if the object has another generation.
        """
        bucket, _, name = url.removeprefix("gs://").partition("/")
        query = urlencode({"uploadType": "media", "name": name, "ifGenerationMatch": generation})
        place = f"{self.storage}/upload/storage/v1/b/{bucket}/o?{query}"
        response = self._request(
            "POST", place, data=json.dumps(data).encode(), headers={"Content-Type": "application/json"}
        )
        return _json(_checked(response, f"{url}: cannot be written"), url)["generation"]

    def delete_object(self, url: str, *, generation: str) -> None:
        """Deletes a gs:// object if `generation` is its own; nothing happens if it is gone."""
        self.call("DELETE", f"{self._object(url)}?ifGenerationMatch={generation}", missing_ok=True)

    def _object(self, url: str) -> str:
        bucket, _, name = url.removeprefix("gs://").partition("/")
        return f"{self.storage}/storage/v1/b/{bucket}/o/{quote(name, safe='')}"

    def _request(self, method: str, url: str, **options: Any) -> Response:
        try:
            return self.session.request(method, url, timeout=_TIMEOUT, **options)
        except RequestException as error:
            raise UnansweredError(f"{method} {url}: {error}") from error
        except GoogleAuthError as error:
            kind = UnansweredError if error.retryable else CloudError
            raise kind(f"{method} {url}: {error}") from error


def _checked(response: Response, what: str) -> Response:
    if response.ok:
        return response
    message = f"{what}: {response.status_code}: {_message(response)}"
    if response.status_code in _FOR_NOW:
        raise UnansweredError(message)
    raise RefusedError(message, response.status_code)


def _json(response: Response, what: str) -> dict:
    if not response.content:
        return {}
    try:
        return response.json()
    except ValueError as error:  # of a proxy on the way, or cut off
        raise UnansweredError(f"{what}: the answer is no JSON: {response.text[:200]!r}") from error


def _message(response: Response) -> str:
    try:
        return response.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):  # not of the interface itself, but of something on the way
        return response.text[:500]


def connect(region: str) -> Api:
    """The interfaces, with the application default credentials; UsageError if there are none."""
    try:
        credentials, _ = google.auth.default(scopes=_SCOPES)
    except GoogleAuthError as error:
        raise UsageError(f"{error} Or run: gcloud auth application-default login") from None
    session = AuthorizedSession(credentials)
    session.mount("https://", HTTPAdapter(max_retries=retries()))
    return Api(session=session, vertex=Api.vertex.format(region=region))
