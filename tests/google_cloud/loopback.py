"""The HTTP server of the stand-ins, on loopback. Standard library only."""

from __future__ import annotations

import json
import socket
import ssl
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from urllib.parse import parse_qsl, urlsplit


@dataclass(frozen=True)
class Request:
    """An HTTP request. `target` is as it was sent, `path` is percent-encoded, `query` is decoded."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    target: str = ""

    @classmethod
    def parse(cls, method: str, url: str, headers: Mapping[str, str], body: bytes) -> Request:
        parts = urlsplit(url)
        return cls(
            method, parts.path, dict(parse_qsl(parts.query, keep_blank_values=True)), headers, body, url
        )


@dataclass(frozen=True)
class Response:
    """An HTTP response. With `cut`, the connection is closed after half of the body."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: bool = False

    @classmethod
    def of_json(cls, data: dict, status: int = 200) -> Response:
        return cls(status, json.dumps(data).encode(), {"Content-Type": "application/json; charset=UTF-8"})

    @classmethod
    def error(cls, status: int, message: str, reason: str = "standIn") -> Response:
        """Returns an error in the format of Google's JSON APIs."""
        errors = [{"message": message, "domain": "global", "reason": reason}]
        return cls.of_json({"error": {"code": status, "message": message, "errors": errors}}, status)


def free_port() -> int:
    """Returns a port of this machine that no program listens on."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


class Loopback:
    """A server on localhost. As a context manager it serves from entry to exit, with a thread per connection.

    Args:
        port: The port; 0 selects a free one.
        tls: A context with a certificate, to serve TLS.
        address: The loopback address to listen on.

    Attributes:
        url: The base URL, without a trailing slash.
    """

    def __init__(self, port: int = 0, tls: ssl.SSLContext | None = None, address: str = "127.0.0.1"):
        self._server = _Server((address, port), type("Handler", (_Handler,), {"stand_in": self}))
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.url = f"{'https' if tls else 'http'}://localhost:{self._server.server_port}"

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()

    def serve(self, request: Request) -> Response:
        """Answers a request. A ConnectionError closes the connection without an answer."""
        raise NotImplementedError

    def take(self, method: str, path: str, size: int) -> int:
        """Returns the number of bytes of a body to read before cutting the connection; `size` for all."""
        return size

    def cut_off(self, request: Request) -> None:
        """Called with the received part of a request whose connection was cut."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        # A client that was killed or closed the connection is no error.
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    stand_in: Loopback
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def _handle(self) -> None:
        chunked = self._read_chunks() if self.headers.get("Transfer-Encoding") == "chunked" else None
        size = int(self.headers.get("Content-Length", 0)) if chunked is None else len(chunked)
        body_size = self.stand_in.take(self.command, self.path, size)
        body = self.rfile.read(body_size) if chunked is None else chunked[:body_size]
        request = Request.parse(self.command, self.path, self.headers, body)
        if body_size < size:
            self.stand_in.cut_off(request)
            self._cut()
            return
        response = self.stand_in.serve(request)
        self.send_response(response.status)
        for name, value in {**response.headers, "Content-Length": str(len(response.body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(response.body[: len(response.body) // 2] if response.cut else response.body)
        if response.cut:
            self._cut()

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = _handle

    def _read_chunks(self) -> bytes:
        """Reads a chunked body, as curl sends data from a callback (RFC 9112, 7.1)."""
        body = b""
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass  # trailers
        return body

    def _cut(self) -> None:
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        pass
