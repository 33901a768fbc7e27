"""A server of pages, as the verb starts it, and a client of it."""

from __future__ import annotations

import http.client
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from beam_pipeline.browsing.server import ADDRESS, BrowseServer
from beam_pipeline.browsing.site import Site
from tests.beam_pipeline.tokenizers import make_tokenizer, save  # noqa: F401 - fixtures
from tests.beam_pipeline.verbs.test_report import Page

ROOT = "/secret/"


class Client:
    """Requests pages of a server."""

    def __init__(self, port: int):
        self.port = port
        self.url = f"http://{ADDRESS}:{port}{ROOT}"

    def request(self, path: str, method: str = "GET", **headers: str) -> tuple[http.client.HTTPResponse, str]:
        """Returns the answer to a request and its body. A path without a slash is below the root."""
        connection = http.client.HTTPConnection(ADDRESS, self.port, timeout=30)
        try:
            connection.putrequest(
                method, path if path.startswith("/") else ROOT + path, skip_host="Host" in headers
            )
            for name, value in headers.items():
                connection.putheader(name, value)
            connection.endheaders()
            response = connection.getresponse()
            return response, response.read().decode()
        finally:
            connection.close()

    def main(self, path: str) -> str:
        """Returns the page below its header, which names the dataset's folder."""
        return self.request(path)[1].partition("<main>")[2]

    def text(self, path: str, status: int = 200) -> str:
        """Returns the text of a page, in one line, and checks its status and its markup."""
        response, body = self.request(path)
        assert response.status == status, body
        return re.sub(r"\s+", " ", " ".join(Page(body).text))


@pytest.fixture(scope="session")
def serve() -> Iterator[Callable[[Path], Client]]:
    """Returns a function that serves a dataset."""
    servers: list[BrowseServer] = []

    def start(dataset: Path) -> Client:
        server = BrowseServer(Site(str(dataset), ROOT), 0)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return Client(server.server_port)

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="session")
def client(serve: Callable[[Path], Client], dataset: Path) -> Client:
    """A client of the pages of `dataset`."""
    return serve(dataset)
