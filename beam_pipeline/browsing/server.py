"""Serves a site to this machine's browser, and to nobody else.

This is the standard library's server: small frameworks such as bottle run on the same one unless a second library
serves them, and a site with six pages needs little of what they add.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from beam_pipeline import __version__
from beam_pipeline.browsing.site import Response, Site

ADDRESS = "127.0.0.1"

# A page of another site can resolve its own name to 127.0.0.1, but cannot change the name that its browser sends. The
# port may be another one, that of a tunnel.
_HOST = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?", re.IGNORECASE)
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src data:; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
_IDLE_SECONDS = 30


class BrowseServer(ThreadingHTTPServer):
    """Serves the pages of a site on a port of the loopback interface.

    Raises:
        OSError: If the port is in use.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, site: Site, port: int):
        self.site = site
        super().__init__((ADDRESS, port), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores that the browser has closed a connection."""


class _Handler(BaseHTTPRequestHandler):
    server: BrowseServer
    protocol_version = "HTTP/1.1"
    server_version = f"tokenmill/{__version__}"
    sys_version = ""
    timeout = _IDLE_SECONDS

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, *, with_body: bool) -> None:
        if self.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in self.headers:
            self.close_connection = True  # a body would be taken for the next request
        hosts = self.headers.get_all("Host") or []
        if len(hosts) == 1 and _HOST.fullmatch(hosts[0].strip()):
            response = self.server.site.respond(self.path)
        else:
            reason = b"tokenmill browse answers requests to 127.0.0.1 and localhost only.\n"
            response = Response(HTTPStatus.FORBIDDEN, "text/plain; charset=utf-8", reason)
        self.send_response(response.status)
        self.send_header("Content-Type", response.content_type)
        self.send_header("Content-Length", str(len(response.body)))
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(response.body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Logs no requests."""
