"""A local stand-in for the Hub: the HTTP endpoints that `HfApi.upload_folder` uses."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any


@dataclass
class Commit:
    """The changes of one push."""

    summary: str
    files: dict[str, bytes]


@dataclass
class Repository:
    """A repository."""

    is_private: bool
    commits: list[Commit] = field(default_factory=list)


class HubStandIn:
    """The received data by repository. `refuse` is the status with which every request fails, if set."""

    def __init__(self) -> None:
        self.url = ""
        self.repositories: dict[str, Repository] = {}
        self.tokens: set[str | None] = set()
        self.refuse: int | None = None
        self._objects: dict[str, bytes] = {}

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        """Returns the status and JSON of the response."""
        if self.refuse is not None:
            return self.refuse, {"error": "the stand-in refuses"}
        if (method, path) == ("POST", "/api/repos/create"):
            body_json = json.loads(body)
            name = f"{body_json['organization'] or 'me'}/{body_json['name']}"
            exists = name in self.repositories
            self.repositories.setdefault(
                name, Repository(is_private=body_json.get("visibility") == "private")
            )
            return 409 if exists else 200, {"url": f"{self.url}/{name}"}
        if (method, path) == ("POST", "/api/validate-yaml"):
            return (200, {"errors": [], "warnings": []}) if b"---" in body else (400, {"errors": []})
        if match := re.fullmatch(r"/api/models/(.+)/preupload/main", path):
            files = json.loads(body)["files"]
            return 200, {"files": [self._mode(file) for file in files]} if match[
                1
            ] in self.repositories else {}
        if match := re.fullmatch(r"/(.+)\.git/info/lfs/objects/batch", path):
            objects = json.loads(body)["objects"]
            return 200, {"transfer": "basic", "objects": [self._object(entry) for entry in objects]}
        if match := re.fullmatch(r"/lfs/([0-9a-f]{64})", path):
            assert hashlib.sha256(body).hexdigest() == match[1]
            self._objects[match[1]] = body
            return 200, {}
        if match := re.fullmatch(r"/api/models/(.+)/commit/main", path):
            self.repositories[match[1]].commits.append(self._commit(body))
            return 200, {"commitOid": "0" * 40, "commitUrl": f"{self.url}/{match[1]}/commit/{'0' * 40}"}
        return 404, {"error": f"{method} {path}: not an endpoint of the stand-in"}

    def _mode(self, file: dict[str, Any]) -> dict[str, Any]:
        is_large = file["path"].endswith(".safetensors")
        return {"path": file["path"], "uploadMode": "lfs" if is_large else "regular", "shouldIgnore": False}

    def _object(self, entry: dict[str, Any]) -> dict[str, Any]:
        if entry["oid"] in self._objects:
            return entry
        return entry | {"actions": {"upload": {"href": f"{self.url}/lfs/{entry['oid']}"}}}

    def _commit(self, body: bytes) -> Commit:
        header, *lines = (json.loads(line) for line in body.splitlines())
        files = {}
        for line in lines:
            value = line["value"]
            is_large = line["key"] == "lfsFile"
            files[value["path"]] = (
                self._objects[value["oid"]] if is_large else base64.b64decode(value["content"])
            )
        return Commit(header["value"]["summary"], files)


@contextmanager
def hub_stand_in() -> Iterator[HubStandIn]:
    """A context that serves a stand-in on a free port."""
    hub = HubStandIn()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length", 0)))
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body

        def _respond(self) -> None:
            body = self._body()
            if not self.path.startswith(("/lfs/", "/api/validate-yaml")):  # these need no token
                hub.tokens.add(self.headers.get("Authorization"))
            status, answer = hub.answer(self.command, self.path.split("?")[0], body)
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = _respond

        def log_message(self, *_: Any) -> None:
            """Logs nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
