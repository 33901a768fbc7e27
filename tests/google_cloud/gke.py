"""A local stand-in for GKE's API and for the API of one cluster, with one JobSet at a time."""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Sequence
from typing import Any

from tests.google_cloud.loopback import Request, Response
from tests.google_cloud.resource_lifecycles import ResourceLifecycles

_JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2"
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


class Gke(ResourceLifecycles):
    """The stand-in. A lifecycle's states are the keys of `_CONDITIONS`, "Suspended", "Pending" and "Running".

    Functions in a lifecycle are called with the stand-in.

    Attributes:
        pods: The JobSet's pods, as the API returns them, and `logs`, their output.
        events: Warnings.
        forbidden: (verb, resource) pairs that the account has no right to.
        installed: Whether the cluster has JobSets.
        cluster: The cluster, as GKE's API returns it.
        namespaces: The cluster's namespaces.
    """

    def __init__(self, *lifecycles: Sequence[Any], **options: Any):
        super().__init__(*lifecycles, **options)
        self._cluster_path = f"/v1/projects/{self._project}/locations/europe-west4/clusters/c"
        self._uids = itertools.count(1)
        self.pods: list[dict] = []
        self.logs: dict[str, str] = {}
        self.events: list[dict] = []
        self.forbidden: set[tuple[str, str]] = set()
        self.installed = True
        self.namespaces = {"default"}
        self.cluster: dict[str, Any] = {
            "status": "RUNNING",
            "endpoint": self.url.partition("://")[2],
            "masterAuth": {"clusterCaCertificate": base64.b64encode(b"none").decode()},
        }

    def create(self, body: dict) -> None:
        super().create(json.loads(json.dumps(body)))
        self.existing["metadata"]["uid"] = f"uid-{next(self._uids)}"
        # The cluster's defaults.
        self.existing["spec"] |= {"startupPolicy": {"startupPolicyOrder": "AnyOrder"}}
        self._state, self.restarts = "Pending", 0

    def host(self, number: int, state: dict, *, log: str | None = None, **status: Any) -> None:
        """Sets the state of a host's container, and its output."""
        name = f"first-fit-0-{number}-abcde"
        pod = {
            "metadata": {
                "name": name,
                "annotations": {
                    "batch.kubernetes.io/job-completion-index": str(number),
                    "jobset.sigs.k8s.io/job-index": "0",
                },
            },
            "status": {
                "phase": "Running" if "running" in state else "Pending",
                "containerStatuses": [{"name": "fit", "state": state}],
            }
            | status,
        }
        self.pods = [each for each in self.pods if each["metadata"]["name"] != name] + [pod]
        if log is not None:
            self.logs[name] = log

    def serve(self, request: Request) -> Response:
        if request.path == self._cluster_path:
            return Response.of_json(self.cluster)
        if request.path.startswith("/v1/"):
            return Response.error(404, f"Not found: {request.path.removeprefix('/v1/')}.")
        if request.path == _REVIEWS:
            attributes = json.loads(request.body)["spec"]["resourceAttributes"]
            resource = "/".join(filter(None, (attributes["resource"], attributes["subresource"])))
            allowed = (attributes["verb"], resource) not in self.forbidden
            return Response.of_json({"status": {"allowed": allowed}}, 201)
        if request.path.startswith(_JOBSETS) and not self.installed:
            return Response(404, b"404 page not found\n", {"Content-Type": "text/plain"})
        if request.path == _JOBSETS:
            return Response.of_json({"kind": "APIResourceList"})
        return self._serve_namespace(request)

    def _serve_namespace(self, request: Request) -> Response:
        parts = request.path.split("/namespaces/")[1].split("/")
        match request.method, parts[1:]:
            case "POST", ["jobsets"]:
                return self._create(parts[0], json.loads(request.body))
            case "GET", ["jobsets", name]:
                return self._show(name)
            case "DELETE", ["jobsets", name]:
                return self._delete(name, json.loads(request.body))
            case "GET", ["pods"]:
                name = self.existing and self.existing["metadata"]["name"]
                assert request.query["labelSelector"] == f"jobset.sigs.k8s.io/jobset-name={name}"
                return Response.of_json({"items": self.pods})
            case "GET", ["pods", pod, "log"]:
                assert request.query["container"] == "fit"
                if pod not in self.logs:
                    return self._error(404, f'pods "{pod}" not found')
                return Response(200, self.logs[pod].encode(), {"Content-Type": "text/plain"})
            case "GET", ["events"]:
                return Response.of_json({"items": self.events})
        return self._error(404, f"the server could not find the requested resource {request.path}")

    def _create(self, namespace: str, body: dict) -> Response:
        name = body["metadata"]["name"]
        if namespace not in self.namespaces:
            return self._error(404, f'namespaces "{namespace}" not found')
        if self.existing is not None:
            return self._error(409, f'jobsets.jobset.x-k8s.io "{name}" already exists')
        self.created.append(body)
        self.create(body)
        return Response.of_json(self.existing, 201)

    def _show(self, name: str) -> Response:
        if self.existing is None or self.existing["metadata"]["name"] != name:
            return self._error(404, f'jobsets.jobset.x-k8s.io "{name}" not found')
        if self._deleting:
            if not self.still_deleting():
                self.pods = []
                return self._error(404, f'jobsets.jobset.x-k8s.io "{name}" not found')
            deleting = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
            return Response.of_json(self.existing | {"metadata": self.existing["metadata"] | deleting})
        self._state = self.next_state()
        if self._state == "Running":
            hosts = self.existing["spec"]["replicatedJobs"][0]["template"]["spec"]["completions"]
            for number in range(hosts):
                self.host(number, {"running": {}})
        self.existing["spec"]["suspend"] = self._state == "Suspended"
        ready = self.existing["spec"]["replicatedJobs"][0]["replicas"] if self._state == "Running" else 0
        conditions = [_CONDITIONS[self._state] | {"status": "True"}] if self._state in _CONDITIONS else []
        return Response.of_json(
            self.existing
            | {
                "status": {
                    "conditions": conditions,
                    "restarts": self.restarts,
                    "replicatedJobsStatus": [{"name": "fit", "ready": ready}],
                }
            }
        )

    def _delete(self, name: str, options: dict) -> Response:
        if self.existing is None or self.existing["metadata"]["name"] != name:
            return self._error(404, f'jobsets.jobset.x-k8s.io "{name}" not found')
        if options["preconditions"]["uid"] != self.existing["metadata"]["uid"]:
            return self._error(409, "the UID in the precondition does not match the UID in record")
        assert options["propagationPolicy"] == "Foreground"
        self._deleting = self._deleting or 3
        return Response.of_json(self.existing)

    def _error(self, status: int, message: str) -> Response:
        """Returns an error in the format of Kubernetes' API."""
        return Response.of_json(
            {"kind": "Status", "status": "Failure", "message": message, "code": status}, status
        )


_CONDITIONS: dict[str, dict[str, str]] = {
    "Completed": {
        "type": "Completed",
        "reason": "AllJobsCompleted",
        "message": "jobset completed successfully",
    },
    "Failed": {
        "type": "Failed",
        "reason": "FailJobSetFailurePolicyAction",
        "message": "jobset failed due to one or more job failures",
    },
    "Exhausted": {
        "type": "Failed",
        "reason": "ReachedMaxRestarts",
        "message": "jobset failed due to reaching max number of restarts",
    },
}
