"""fake-gcs-server (https://github.com/fsouza/fake-gcs-server), an independent implementation of Cloud Storage.

Standard library only, since both programs' environments import it.
"""

from __future__ import annotations

import contextlib
import http
import http.client
import json
import re
import ssl
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import quote

from tests.google_cloud.loopback import Loopback, Request, Response, free_port

PROGRAM = Path(__file__).parents[2] / ".engines" / "fake-gcs-server"
"""`make test-engines` installs it."""
_OWN_HEADERS = frozenset(("connection", "content-length", "date", "server", "transfer-encoding"))


class Relay(Loopback):
    """Passes requests on to fake-gcs-server, with two changes that it needs to serve Google's clients.

    It issues the tokens of a fictitious service account, and it numbers the parts of a batch: the server drops parts
    without a Content-ID. Google's documentation calls it optional (https://cloud.google.com/storage/docs/batch), and
    Google's Python client sends none.

    Args:
        server_port: The server's port on this machine.
        port: See `Loopback`.
        tls: See `Loopback`.

    Attributes:
        requests: "METHOD path" of all requests so far.
    """

    def __init__(self, server_port: int, port: int = 0, tls: ssl.SSLContext | None = None):
        super().__init__(port, tls)
        self.requests: list[str] = []
        self._server_port = server_port

    def serve(self, request: Request) -> Response:
        self.requests.append(f"{request.method} {request.path}")
        if request.path == "/token":
            return Response.of_json({"access_token": "stand-in", "expires_in": 3600, "token_type": "Bearer"})
        body = _with_content_ids(request) if request.path.startswith("/batch/") else request.body
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _OWN_HEADERS}
        headers["X-Forwarded-Proto"] = self.url.partition(":")[0]  # for the URLs of resumable uploads
        return self._ask(request.method, request.target, headers, body)

    def get(self, target: str) -> bytes:
        """Returns the body of the server's answer to GET."""
        answer = self._ask("GET", target, {}, b"")
        assert answer.status == http.HTTPStatus.OK, answer
        return answer.body

    def read(self, url: str) -> bytes:
        """Returns the bytes of the object gs://bucket/name."""
        bucket, _, name = url.removeprefix("gs://").partition("/")
        return self.get(f"/storage/v1/b/{bucket}/o/{quote(name, safe='')}?alt=media")

    def delete(self, url: str) -> None:
        """Deletes the object gs://bucket/name."""
        bucket, _, name = url.removeprefix("gs://").partition("/")
        answer = self._ask("DELETE", f"/storage/v1/b/{bucket}/o/{quote(name, safe='')}", {}, b"")
        assert answer.status in (http.HTTPStatus.OK, http.HTTPStatus.NO_CONTENT), answer

    def names(self, url: str) -> list[str]:
        """Returns the names of the objects below gs://bucket/folder/, relative to it, sorted."""
        bucket, _, prefix = url.removeprefix("gs://").partition("/")
        listing = json.loads(
            self.get(f"/storage/v1/b/{bucket}/o?maxResults=5000&prefix={quote(prefix, safe='')}")
        )
        assert "nextPageToken" not in listing
        return sorted(item["name"].removeprefix(prefix) for item in listing.get("items", []))

    def _ask(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Response:
        connection = http.client.HTTPConnection("127.0.0.1", self._server_port, timeout=60)
        with contextlib.closing(connection):
            connection.request(method, target, body or None, {**headers, "Content-Length": str(len(body))})
            response = connection.getresponse()
            data = response.read()
        response_headers = {
            name: value for name, value in response.getheaders() if name.lower() not in _OWN_HEADERS
        }
        return Response(response.status, data, response_headers)


def _with_content_ids(request: Request) -> bytes:
    numbers = iter(range(1 << 30))
    return re.sub(
        rb"(?m)^Content-Type: application/http\r?$",
        lambda match: b"Content-ID: <%d>\r\n" % next(numbers) + match[0],
        request.body,
    )


@contextlib.contextmanager
def serving(
    objects: Path, *, port: int = 0, tls: ssl.SSLContext | None = None, host: str = ""
) -> Iterator[Relay]:
    """Runs the server behind a relay.

    Args:
        objects: A folder whose folders become buckets.
        port: Of the relay; 0 selects a free one.
        tls: See `Loopback`.
        host: The host that clients connect to; empty: the relay's.
    """
    own_port = free_port()
    with Relay(own_port, port, tls) as relay:
        scheme, _, own_host = relay.url.partition("://")
        host = host or own_host
        address = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(own_port)]
        names = ["-public-host", host, "-external-url", f"{scheme}://{host}"]
        options = ["-backend", "memory", "-data", str(objects), "-log-level", "warn"]
        with subprocess.Popen([str(PROGRAM), *address, *names, *options]) as server:
            try:
                _wait_until_it_listens(own_port)
                yield relay
            finally:
                server.terminate()


def _wait_until_it_listens(port: int) -> None:
    end = time.monotonic() + 30
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", "/storage/v1/b")
            connection.getresponse().read()
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
        finally:
            connection.close()
