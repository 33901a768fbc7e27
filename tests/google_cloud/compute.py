"""A local stand-in for Compute Engine's instance templates, policies, managed instance groups and operations."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from typing import Any

from tests.google_cloud.loopback import Request, Response
from tests.google_cloud.resource_lifecycles import ResourceLifecycles

_KINDS = {"instanceTemplates": "regions/europe-west4", "resourcePolicies": "regions/europe-west4"}
_KINDS["instanceGroupManagers"] = "zones/europe-west4-b"


class Compute(ResourceLifecycles):
    """The stand-in. `existing` is the group. A lifecycle's states are those of the group's instances in listings.

    A state is an instance status of all hosts, or a list of (status, action, error code) of each host. Functions in a
    lifecycle are called with the hosts' metadata.

    Attributes:
        parts: The resources that exist, by (kind, name).
        failures: For each kind, the error codes with which its next operations fail.
        failed_deletions: For each kind, the error code with which all operations that delete it fail.
        used_by_others: Resources, by (kind, name), that a resource of another user needs.
        polls_to_finish: How many times an operation is shown as running.
        status: The group's status, if it is not stable.
    """

    def __init__(self, *lifecycles: Sequence[Any], polls_to_finish: int = 1, **options: Any):
        super().__init__(*lifecycles, **options)
        self.parts: dict[tuple[str, str], dict] = {}
        self.failures: dict[str, list[str]] = {}
        self.failed_deletions: dict[str, str] = {}
        self.used_by_others: set[tuple[str, str]] = set()
        self.polls_to_finish = polls_to_finish
        self.status: dict = {}
        self._operations: dict[str, dict] = {}
        self._requests: dict[str, dict] = {}

    @property
    def resource_exists(self) -> bool:
        return bool(self.parts)

    @property
    def metadata(self) -> dict[str, str]:
        name = self.existing["instanceTemplate"].rpartition("/")[2]
        items = self.parts["instanceTemplates", name]["properties"]["metadata"]["items"]
        return {item["key"]: item["value"] for item in items}

    def before_state(self) -> dict[str, str]:
        return self.metadata

    def put(self, kind: str, body: dict) -> None:
        """Creates a resource, as a request does."""
        self.parts[kind, body["name"]] = body
        if kind == "instanceGroupManagers":
            self.create(body)

    def serve(self, request: Request) -> Response:
        prefix = f"/compute/v1/projects/{self._project}/"
        assert request.path.startswith(prefix), request.path
        scope, place, kind, *name_and_action = request.path.removeprefix(prefix).split("/")
        if kind == "operations":
            return self._show_operation(name_and_action[0])
        assert _KINDS[kind] == f"{scope}/{place}", request.path
        match request.method, name_and_action:
            case "POST", []:
                return self._insert(kind, json.loads(request.body), request.query["requestId"])
            case _ if (kind, name_and_action[0]) not in self.parts:
                return Response.error(404, f"The resource {kind}/{name_and_action[0]} was not found")
            case "GET", [name]:
                return self._show(kind, name)
            case "DELETE", [name]:
                return self._delete(kind, name)
            case "POST", [_, "listManagedInstances"]:
                return self._list()
        return Response.error(404, f"nothing at {request.path}")

    def _insert(self, kind: str, body: dict, request_id: str) -> Response:
        assert uuid.UUID(request_id)
        if request_id in self._requests:
            return Response.of_json(self._requests[request_id])
        if (kind, body["name"]) in self.parts:
            return Response.error(409, f"The resource {kind}/{body['name']} already exists")
        code = self.failures[kind].pop(0) if self.failures.get(kind) else None
        operation = self._operation(code)
        if code is None:
            if kind == "instanceGroupManagers":
                for needed_part in self._used(body):
                    if needed_part not in self.parts:
                        return Response.error(404, f"The resource {needed_part} was not found")
                self.created.append(body)
            self.put(kind, body)
        self._requests[request_id] = operation
        return Response.of_json(operation)

    def _used(self, group: dict) -> list[tuple[str, str]]:
        urls = [group["instanceTemplate"], group.get("resourcePolicies", {}).get("workloadPolicy")]
        return [tuple(url.split("/")[-2:]) for url in urls if url]

    def _show(self, kind: str, name: str) -> Response:
        if kind == "instanceGroupManagers" and self._deleting and not self.still_deleting():
            del self.parts[kind, name]
            return Response.error(404, "deleted")
        status = {"status": self.status} if self.status and kind == "instanceGroupManagers" else {}
        return Response.of_json(self.parts[kind, name] | status)

    def _delete(self, kind: str, name: str) -> Response:
        if kind != "instanceGroupManagers":
            is_used = self.existing is not None and (kind, name) in self._used(self.existing)
            if is_used or (kind, name) in self.used_by_others:
                message = f"The {kind} resource '{name}' is already being used by '{name}'"
                return Response.error(400, message, "resourceInUseByAnotherResource")
            if code := self.failed_deletions.get(kind):
                return Response.of_json(self._operation(code))
            del self.parts[kind, name]
        elif self._deleting:
            return Response.error(400, f"The resource '{name}' is not ready")
        else:
            self._deleting = 2
        return Response.of_json(self._operation())

    def _list(self) -> Response:
        state = "STOPPING" if self._deleting else self.next_state()
        size = self.existing["targetSize"]
        states = state if isinstance(state, list) else [(state, "NONE", None)] * size
        instances = []
        for number, (status, action, code) in enumerate(states):
            error = [{"code": code, "message": f"because of {code}"}] if code else []
            instances.append(
                {
                    "name": f"{self.existing['baseInstanceName']}-{number:04}",
                    "currentAction": "DELETING" if self._deleting else action,
                    "lastAttempt": {"errors": {"errors": error}},
                }
                | ({"instanceStatus": status} if status else {})
            )
        return Response.of_json({"managedInstances": instances})

    def _operation(self, code: str | None = None) -> dict:
        """Returns a new operation, which fails if there is an error code."""
        name = f"operation-{len(self._operations)}"
        self._operations[name] = {"name": name, "status": "RUNNING", "polls_left": self.polls_to_finish}
        if code is not None:
            error = {"code": code, "message": f"because of {code}"}
            self._operations[name]["error"] = {"errors": [error]}
        return self._operations[name]

    def _show_operation(self, name: str) -> Response:
        operation = self._operations[name]
        operation["polls_left"] -= 1
        if operation["polls_left"] < 0:
            operation["status"] = "DONE"
        return Response.of_json(operation)
