"""A TPU as a queued resource of the Cloud TPU API."""

from __future__ import annotations

import secrets
import uuid

from tpu_trainer.cloud.api import Api, RefusedError
from tpu_trainer.cloud.config import LaunchConfig
from tpu_trainer.cloud.exits import ContainerExit
from tpu_trainer.cloud.host_reports import ATTEMPT, REPORT, host_metadata, report_url, reported_exits
from tpu_trainer.cloud.tpu_resource import Phase, TpuResource

WAITING_STATES = ("STATE_UNSPECIFIED", "CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING")
PREEMPTED_STATES = ("SUSPENDING", "SUSPENDED")
PREEMPTED_NODE_STATES = ("PREEMPTED", "TERMINATED", "STOPPED", "STOPPING")


def request(config: LaunchConfig, attempt: str) -> dict:
    """Returns the request's body, a `QueuedResource` of API version 2."""
    cloud = config.cloud
    node = {
        "acceleratorType": cloud.accelerator_type,
        "runtimeVersion": cloud.runtime_version,
        "networkConfig": {
            "enableExternalIps": not cloud.internal_ips,
            "network": cloud.network or "default",
        },
        "labels": {"run": config.name, **cloud.labels},
        "metadata": host_metadata(config, attempt),
    }
    if cloud.subnetwork:
        node["networkConfig"]["subnetwork"] = cloud.subnetwork
    if cloud.service_account:
        scope = ["https://www.googleapis.com/auth/cloud-platform"]
        node["serviceAccount"] = {"email": cloud.service_account, "scope": scope}
    body = {"tpu": {"nodeSpec": [{"parent": _parent(config), "nodeId": config.name, "node": node}]}}
    if cloud.spot:
        body["spot"] = {}
    if cloud.valid_for_seconds is not None:
        body["queueingPolicy"] = {"validUntilDuration": f"{cloud.valid_for_seconds}s"}
    return body


def _parent(config: LaunchConfig) -> str:
    return f"projects/{config.cloud.project}/locations/{config.cloud.zone}"


class QueuedResource(TpuResource):
    """The queued resource of a run. The methods raise the errors of Api.call."""

    noun = "queued resource"

    def __init__(self, api: Api, config: LaunchConfig) -> None:
        self._api = api
        self._config = config
        self.new_attempt()
        self._all = f"{api.tpu}/v2/{_parent(config)}/queuedResources"
        self._url = f"{self._all}/{config.name}"
        self._node = f"{api.tpu}/v2/{_parent(config)}/nodes/{config.name}"
        cloud = config.cloud
        self.delete_command = (
            f"gcloud compute tpus queued-resources delete {config.name} --project {cloud.project} --zone {cloud.zone} "
            "--force --quiet --async"
        )
        """A shell command that deletes the queued resource."""

    def get(self) -> dict | None:
        """Returns the queued resource; None if it does not exist."""
        return self._api.call("GET", self._url, missing_ok=True)

    def new_attempt(self) -> None:
        """Lets `create` request another queued resource than before."""
        self._attempt = secrets.token_hex(4)

    def create(self) -> bool:
        """Requests the queued resource, without retries. Returns False if one of this name exists.

        The API executes the requests of an attempt only once.
        """
        query = (
            f"queuedResourceId={self._config.name}&requestId={uuid.uuid5(uuid.NAMESPACE_OID, self._attempt)}"
        )
        try:
            self._api.call("POST", f"{self._all}?{query}", request(self._config, self._attempt))
        except RefusedError as error:
            if error.code != 409:
                raise
            return False
        return True

    def delete(self, found: dict) -> None:
        """Starts to delete the queued resource and its node, which takes minutes; does nothing if it is gone."""
        try:
            self._api.call("DELETE", f"{self._url}?force=true", missing_ok=True)
        except RefusedError as error:
            left = self.get()
            if left is not None and not self.is_deleting(left):
                raise error

    def is_deleting(self, found: dict) -> bool:
        """Whether `found` is being deleted."""
        return _state_of(found) == "DELETING"

    def identity(self, found: dict) -> str:
        """What another queued resource of this name does not have."""
        return _metadata(found).get(ATTEMPT, "")

    def conflict(self, found: dict) -> str | None:
        """Returns why `found` is not the run's; None if this or another process requested it for the run."""
        metadata = _metadata(found)
        if metadata.get(REPORT) == report_url(self._config, metadata.get(ATTEMPT, "")):
            return None
        return f"not for {self._config.output_dir}; choose another --cloud.name"

    def phase(self, found: dict) -> Phase:
        """Returns how far the TPU is."""
        state = _state_of(found)
        if state in WAITING_STATES:
            return Phase("waiting", state)
        if state == "FAILED":
            error = found["state"].get("failedData", {}).get("error", {})
            return Phase("failed", error.get("message", "no reason given"))
        if state not in (*PREEMPTED_STATES, "ACTIVE"):
            return Phase("unknown", state)
        node = self._api.call("GET", self._node, missing_ok=True) or {}
        preempted = state in PREEMPTED_STATES or node.get("state") in PREEMPTED_NODE_STATES
        return Phase("preempted" if preempted else "active")

    def exits(self, found: dict) -> list[ContainerExit]:
        """Returns the container exits that the hosts of `found` have reported, by host number."""
        attempt = _metadata(found).get(ATTEMPT)
        return [] if attempt is None else reported_exits(self._api, self._config, attempt)


def _state_of(found: dict) -> str:
    # A new one may have none yet.
    return found.get("state", {}).get("state", "STATE_UNSPECIFIED")


def _metadata(found: dict) -> dict[str, str]:
    return found["tpu"]["nodeSpec"][0]["node"].get("metadata", {})
