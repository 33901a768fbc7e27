"""Google Cloud's REST interfaces, with the credentials of where this runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import google.auth
from google.auth.exceptions import GoogleAuthError
from google.auth.transport.requests import AuthorizedSession
from requests import RequestException, Response
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

from tpu_trainer.errors import CloudError, UsageError

_SCOPES = ["https://www.googleapis.com/auth/cloud-platform"]
_TIMEOUT = 60  # seconds


def retries(*, backoff: float = 1) -> Retry:
    """Six, for what is wrong only for now, with a wait that doubles from `backoff` seconds. A request that is made
    twice does no harm here: what exists is refused with 409, what is gone with 404."""
    return Retry(
        total=6,
        backoff_factor=backoff,
        status_forcelist=(429, 500, 502, 503, 504),
        allowed_methods=None,
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
        """What the interface answers. CloudError with its message where it refuses; None where it answers 404 and
        that is `missing_ok`."""
        response = self._request(method, url, json=body)
        if missing_ok and response.status_code == 404:
            return None
        if not response.ok:
            raise CloudError(f"{method} {url}: {response.status_code}: {_message(response)}")
        return response.json() if response.content else {}

    def read_object(self, url: str, *, last_bytes: int | None = None) -> str | None:
        """The text of a gs:// object, or its end; None where there is none."""
        bucket, _, name = url.removeprefix("gs://").partition("/")
        place = f"{self.storage}/storage/v1/b/{bucket}/o/{quote(name, safe='')}?alt=media"
        headers = {} if last_bytes is None else {"Range": f"bytes=-{last_bytes}"}
        response = self._request("GET", place, headers=headers)
        if response.status_code in (404, 416):  # 416: it is empty
            return None
        if not response.ok:
            raise CloudError(f"{url}: cannot be read: {response.status_code}: {_message(response)}")
        return response.content.decode(errors="replace")

    def _request(self, method: str, url: str, **options: Any) -> Response:
        try:
            return self.session.request(method, url, timeout=_TIMEOUT, **options)
        except (RequestException, GoogleAuthError) as error:
            raise CloudError(f"{method} {url}: {error}") from error


def _message(response: Response) -> str:
    try:
        return response.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):  # not of the interface itself, but of something on the way
        return response.text[:500]


def connect(region: str) -> Api:
    """The interfaces, with the application default credentials; UsageError where there are none."""
    try:
        credentials, _ = google.auth.default(scopes=_SCOPES)
    except GoogleAuthError as error:
        raise UsageError(f"{error} Or run: gcloud auth application-default login") from None
    session = AuthorizedSession(credentials)
    session.mount("https://", HTTPAdapter(max_retries=retries()))
    return Api(session=session, vertex=Api.vertex.format(region=region))
