"""A local stand-in for the TPU API, with one queued resource at a time."""

from __future__ import annotations

import json
import ssl
import uuid
from collections.abc import Sequence
from typing import Any

from tests.google_cloud.loopback import Loopback, Request, Response


class Tpu(Loopback):
    """The stand-in.

    Args:
        lives: For each queued resource in turn, the answers to successive requests for its state. An answer is a state,
            or the states of the resource and its node. A function is called with the metadata before the next
            answer. The last answer is repeated.
        project: The only project that the stand-in serves.
        port: See `Loopback`.
        tls: See `Loopback`.
        address: See `Loopback`.

    Attributes:
        created: The bodies of the requests that created resources.
        existing: The existing resource, or None.
    """

    def __init__(
        self,
        *lives: Sequence[Any],
        project: str = "p",
        port: int = 0,
        tls: ssl.SSLContext | None = None,
        address: str = "127.0.0.1",
    ):
        super().__init__(port, tls, address)
        self._path = f"/v2/projects/{project}/locations/europe-west4-b"
        self._lives = [list(life) for life in lives]
        self.created: list[dict] = []
        self.existing: dict | None = None
        self._deleting = 0

    @property
    def metadata(self) -> dict[str, str]:
        return self.existing["tpu"]["nodeSpec"][0]["node"]["metadata"]

    def create(self, body: dict) -> None:
        """Creates the resource, as a request does."""
        self.existing = body
        self._life = self._lives.pop(0)
        self._node_state = "READY"
        self._deleting = 0

    def serve(self, request: Request) -> Response:
        name = self.existing and self.existing["tpu"]["nodeSpec"][0]["nodeId"]
        match request.method, request.path.removeprefix(self._path):
            case "POST", "/queuedResources":
                body = json.loads(request.body)
                assert request.query["queuedResourceId"] == body["tpu"]["nodeSpec"][0]["nodeId"]
                if self.existing is not None and not (
                    self._deleting and name != request.query["queuedResourceId"]
                ):
                    return Response.error(409, f"{name} exists")
                assert uuid.UUID(request.query["requestId"])
                self.created.append(body)
                self.create(body)
                return Response.of_json({"name": "operations/1"})
            case "GET", "/queuedResources":
                return Response.of_json({"queuedResources": self._list()})
            case _ if self.existing is None:
                return Response.error(404, f"nothing at {request.path}")
            case "GET", path if path == f"/queuedResources/{name}":
                return self._show()
            case "DELETE", path if path == f"/queuedResources/{name}":
                assert request.query == {"force": "true"}
                if self._deleting:
                    return Response.error(409, f"{name} is being deleted")
                self._deleting = 2
                return Response.of_json({"name": "operations/2"})
            case "GET", path if path == f"/nodes/{name}":
                return Response.of_json({"name": name, "state": self._node_state})
        return Response.error(404, f"nothing at {request.path}")

    def _list(self) -> list[dict]:
        if self.existing is None:
            return []
        name = f"{self._path.removeprefix('/v2/')}/queuedResources/{self.existing['tpu']['nodeSpec'][0]['nodeId']}"
        state = "DELETING" if self._deleting else "ACTIVE"
        return [self.existing | {"name": name, "state": {"state": state}}]

    def _show(self) -> Response:
        if self._deleting:
            self._deleting -= 1
            if not self._deleting:
                self.existing = None
                return Response.error(404, "deleted")
            return Response.of_json({**self.existing, "state": {"state": "DELETING"}})
        while callable(self._life[0]):
            self._life.pop(0)(self.metadata)
        now = self._life.pop(0) if len(self._life) > 1 else self._life[0]
        state, self._node_state = now if isinstance(now, tuple) else (now, "READY")
        found: dict[str, Any] = {"state": state}
        if state == "FAILED":
            found["failedData"] = {"error": {"code": 8, "message": "no more capacity in the zone"}}
        return Response.of_json({**self.existing, "state": found})
