"""A local stand-in for the TPU API, with one queued resource at a time."""

from __future__ import annotations

import json
import uuid
from typing import Any

from tests.google_cloud.loopback import Request, Response
from tests.google_cloud.resource_lifecycles import ResourceLifecycles


class Tpu(ResourceLifecycles):
    """The stand-in. A lifecycle's states are those of the resource, or of the resource and its node.

    Functions in a lifecycle are called with the node's metadata.
    """

    @property
    def _place(self) -> str:
        return f"projects/{self._project}/locations/europe-west4-b"

    @property
    def metadata(self) -> dict[str, str]:
        return self.existing["tpu"]["nodeSpec"][0]["node"]["metadata"]

    def before_state(self) -> dict[str, str]:
        return self.metadata

    def create(self, body: dict) -> None:
        super().create(body)
        self._node_state = "READY"

    def serve(self, request: Request) -> Response:
        name = self.existing and self.existing["tpu"]["nodeSpec"][0]["nodeId"]
        match request.method, request.path.removeprefix(f"/v2/{self._place}"):
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
                assert request.query["force"] == "true"
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
        name = f"{self._place}/queuedResources/{self.existing['tpu']['nodeSpec'][0]['nodeId']}"
        state = "DELETING" if self._deleting else "ACTIVE"
        return [self.existing | {"name": name, "state": {"state": state}}]

    def _show(self) -> Response:
        if self._deleting:
            if not self.still_deleting():
                return Response.error(404, "deleted")
            return Response.of_json({**self.existing, "state": {"state": "DELETING"}})
        next_state = self.next_state()
        state, self._node_state = next_state if isinstance(next_state, tuple) else (next_state, "READY")
        resource_state: dict[str, Any] = {"state": state}
        if state == "FAILED":
            resource_state["failedData"] = {"error": {"code": 8, "message": "no more capacity in the zone"}}
        return Response.of_json({**self.existing, "state": resource_state})
