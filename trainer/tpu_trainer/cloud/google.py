"""Google Cloud's client libraries: the credentials of this machine, one attempt per request, and what errors mean."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import google.auth
from google.api_core.exceptions import GoogleAPICallError, from_http_status
from google.auth.credentials import Credentials
from google.auth.exceptions import GoogleAuthError, TransportError
from google.auth.transport.requests import AuthorizedSession
from google.protobuf.json_format import ParseError
from requests import RequestException, Response

from tpu_trainer.support.errors import CloudError, UsageError

TIMEOUT = 30  # seconds
_SCOPES = ["https://www.googleapis.com/auth/cloud-platform"]
_TRANSIENT_STATUSES = (408, 429, 500, 502, 503, 504)
"""Statuses of transient errors, after which the request may or may not have been executed."""
_RATE_LIMITS = {"rateLimitExceeded", "userRateLimitExceeded"}
"""Compute Engine's reasons for status 403 after too many requests in a short time."""

_Client = TypeVar("_Client")


class RefusedError(CloudError):
    """A permanent error of the API. `code` is the HTTP status, `reasons` are the API's names of the error."""

    def __init__(self, message: str, code: int, reasons: frozenset[str] = frozenset()) -> None:
        super().__init__(message)
        self.code = code
        self.reasons = reasons


class UnansweredError(CloudError):
    """No response, or a transient error: the request may or may not have been executed."""


@contextmanager
def answered() -> Iterator[None]:
    """Context in which the errors of Google's libraries are raised as RefusedError, UnansweredError or CloudError."""
    try:
        yield
    except GoogleAPICallError as error:
        message, reasons = _parse(error)
        if error.code in _TRANSIENT_STATUSES or reasons & _RATE_LIMITS:
            raise UnansweredError(message) from error
        raise RefusedError(message, int(error.code or 0), reasons) from error
    except (RequestException, ParseError) as error:  # ParseError: from a proxy, or truncated
        raise UnansweredError(str(error)) from error
    except GoogleAuthError as error:
        # TransportError: the network is down while a token is renewed. The libraries do not call that retryable.
        down = any(isinstance(each, TransportError) for each in (error, error.__cause__, *error.args))
        raise (UnansweredError if down or error.retryable else CloudError)(str(error)) from error


def _parse(error: GoogleAPICallError) -> tuple[str, frozenset[str]]:
    """Returns "STATUS METHOD URL: message" and the API's names of the error."""
    response = error.response
    if not isinstance(response, Response):
        return str(error), frozenset()
    try:
        content = response.json()
        # Kubernetes' errors have the message at the top.
        details = content if "message" in content else content["error"]
        message = details["message"]
        reasons = frozenset(each.get("reason", "") for each in details.get("errors", ()))
    except (ValueError, KeyError, TypeError, AttributeError):  # from a proxy instead of the API
        message, reasons = response.text[:500], frozenset()
    url = response.request.url.partition("?")[0]
    return f"{response.status_code} {response.request.method} {url}: {message}", reasons


def send(method: Callable[..., Any], **arguments: Any) -> Any:
    """Calls a method of a client once, and raises the errors of `answered`.

    The clients' own retries are off: those of GET requests last up to ten minutes, in which no lease would be renewed,
    and only the caller knows how to find out whether a request without a response was executed.
    """
    with answered():
        return method(**arguments, retry=None, timeout=TIMEOUT)


def get(method: Callable[..., Any], **arguments: Any) -> Any:
    """Like `send`, but returns None if what is requested does not exist."""
    return _send_unless(404, method, arguments)


def create(method: Callable[..., Any], **arguments: Any) -> Any:
    """Like `send`, but returns None if what is to be created exists already."""
    return _send_unless(409, method, arguments)


def _send_unless(code: int, method: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    try:
        return send(method, **arguments)
    except RefusedError as error:
        if error.code != code:
            raise
        return None


def as_json(message: Any) -> dict:
    """Returns a message of Google's libraries as JSON, as REST requests have it."""
    return type(message).to_dict(
        message,
        use_integers_for_enums=False,
        preserving_proto_field_name=False,
        always_print_fields_with_no_presence=False,
    )


@dataclass(frozen=True, kw_only=True)
class Google:
    """Access to Google Cloud. The endpoints are replaced in tests."""

    credentials: Credentials
    endpoint: str | None = None
    """Base URL of all services except Cloud Storage; None: each service's own."""
    storage: str | None = None
    """Base URL of Cloud Storage; None: its own."""
    cluster: str = "https://{endpoint}"
    """Base URL of a GKE cluster's API."""

    def client(self, kind: Callable[..., _Client]) -> _Client:
        """Returns a client of a class of Google's libraries, which sends REST requests."""
        options = {"api_endpoint": self.endpoint} if self.endpoint else None
        return kind(credentials=self.credentials, transport="rest", client_options=options)


@dataclass(frozen=True, kw_only=True)
class RestApi:
    """A REST API without a client library that is small enough: Vertex AI's, and that of a Kubernetes cluster."""

    google: Google
    url: str
    """Base URL, without a trailing slash."""
    verify: str | None = None
    """File with the certificates to trust; None: the system's."""

    def request(self, method: str, path: str, body: dict | None = None, **query: Any) -> Response:
        """Sends a request once and returns the response; raises the errors of `answered`."""
        options = {"json": body, "params": query, "timeout": TIMEOUT, "verify": self.verify}
        with answered(), AuthorizedSession(self.google.credentials) as session:
            response = session.request(method, f"{self.url}/{path}", **options)
            if not response.ok:
                raise from_http_status(response.status_code, "", response=response)
        return response

    def call(self, method: str, path: str, body: dict | None = None, **query: Any) -> dict:
        """Like `request`, but returns the response's JSON."""
        response = self.request(method, path, body, **query)
        with answered():
            return response.json()

    def get(self, path: str, **query: Any) -> dict | None:
        """Returns the JSON of a GET request; None if what is requested does not exist."""
        try:
            return self.call("GET", path, **query)
        except RefusedError as error:
            if error.code != 404:
                raise
            return None


def connect() -> Google:
    """Returns access with the application default credentials; raises UsageError if there are none."""
    try:
        credentials, _ = google.auth.default(scopes=_SCOPES)
    except GoogleAuthError as error:
        raise UsageError(f"{error} Or run: gcloud auth application-default login") from None
    return Google(credentials=credentials)
