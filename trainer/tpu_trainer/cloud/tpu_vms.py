"""A TPU as a queued resource of the Cloud TPU API, whose hosts are TPU VMs."""

from __future__ import annotations

import secrets
import uuid

from google.cloud import tpu_v2

from tpu_trainer.cloud.config import LaunchConfig
from tpu_trainer.cloud.google import Google, RefusedError, as_json, create, get
from tpu_trainer.cloud.hosts import ATTEMPT, HostReports, host_metadata
from tpu_trainer.cloud.objects import Objects
from tpu_trainer.cloud.service import OPTIONS, Resource, Service, State, conflict_of

_States = tpu_v2.QueuedResourceState.State
WAITING = (
    *(_States.STATE_UNSPECIFIED, _States.CREATING, _States.ACCEPTED),
    *(_States.WAITING_FOR_RESOURCES, _States.PROVISIONING),
)
SUSPENDED = (_States.SUSPENDING, _States.SUSPENDED)
_Node = tpu_v2.Node.State
TAKEN_NODES = (_Node.PREEMPTED, _Node.TERMINATED, _Node.STOPPED, _Node.STOPPING)


class TpuVms(Service):
    """The queued resource of a run."""

    noun = "queued resource"

    def __init__(self, google: Google, objects: Objects, config: LaunchConfig) -> None:
        self._client = google.client(tpu_v2.TpuClient)
        self._config = config
        self._reports = HostReports(objects, config)
        cloud = config.cloud
        self._name = f"{_parent(config)}/queuedResources/{config.name}"
        self._node = f"{_parent(config)}/nodes/{config.name}"
        self._queued_resource = tpu_v2.QueuedResource()
        self.requested = f"a {cloud.accelerator_type} in {cloud.zone}"
        self.delete_command = (
            f"gcloud compute tpus queued-resources delete {config.name} --project {cloud.project} --zone {cloud.zone} "
            "--force --quiet --async"
        )
        self.new_attempt()

    @staticmethod
    def preview(config: LaunchConfig) -> dict:
        body = as_json(queued_resource(config, "dry-run"))
        node = body["tpu"]["nodeSpec"][0]["node"]
        for name in ("labels", "metadata"):  # Google's messages order maps differently in each process
            node[name] = dict(sorted(node[name].items()))
        return body

    def new_attempt(self) -> None:
        self._attempt = secrets.token_hex(4)

    def find(self) -> Resource | None:
        queued_resource = get(self._client.get_queued_resource, name=self._name)
        if queued_resource is None:
            return None
        self._queued_resource = queued_resource
        metadata = self._metadata()
        return Resource(
            identity=metadata.get(ATTEMPT, ""),
            deleting=queued_resource.state.state == _States.DELETING,
            conflict=conflict_of(self._config, metadata.get(OPTIONS), self.delete_command),
        )

    def request(self) -> bool:
        # The API executes the requests of an attempt only once.
        request = tpu_v2.CreateQueuedResourceRequest(
            parent=_parent(self._config),
            queued_resource_id=self._config.name,
            queued_resource=queued_resource(self._config, self._attempt),
            request_id=str(uuid.uuid5(uuid.NAMESPACE_OID, self._attempt)),
        )
        return create(self._client.create_queued_resource, request=request) is not None

    def state(self) -> State:
        state = self._queued_resource.state.state
        if state in WAITING:
            return State("waiting", _States(state).name)
        if state == _States.FAILED:
            reason = self._queued_resource.state.failed_data.error.message or "no reason given"
            return State("failed", f"the request for a TPU failed: {reason}")
        if state not in (*SUSPENDED, _States.ACTIVE):
            return State("unknown", getattr(state, "name", str(state)))
        node = get(self._client.get_node, name=self._node)
        is_preempted = state in SUSPENDED or (node is not None and node.state in TAKEN_NODES)
        return self._reports.state(self._metadata().get(ATTEMPT, ""), preempted=is_preempted)

    def delete(self) -> None:
        request = tpu_v2.DeleteQueuedResourceRequest(name=self._name, force=True)
        try:
            get(self._client.delete_queued_resource, request=request)
        except RefusedError:
            remaining = self.find()
            if remaining is not None and not remaining.deleting:
                raise

    def _metadata(self) -> dict[str, str]:
        return (
            dict(self._queued_resource.tpu.node_spec[0].node.metadata)
            if self._queued_resource.tpu.node_spec
            else {}
        )


def queued_resource(config: LaunchConfig, attempt: str) -> tpu_v2.QueuedResource:
    """Returns the queued resource to request."""
    cloud = config.cloud
    node = tpu_v2.Node(
        accelerator_type=cloud.accelerator_type,
        runtime_version=cloud.runtime_version,
        network_config={
            "enable_external_ips": not cloud.internal_ips,
            "network": cloud.network or "default",
            "subnetwork": cloud.subnetwork or "",
        },
        labels={"run": config.name, **cloud.labels},
        metadata=host_metadata(config, attempt),
    )
    if cloud.service_account:
        scope = ["https://www.googleapis.com/auth/cloud-platform"]
        node.service_account = {"email": cloud.service_account, "scope": scope}
    body = tpu_v2.QueuedResource(
        tpu={"node_spec": [{"parent": _parent(config), "node_id": config.name, "node": node}]}
    )
    if cloud.spot:
        body.spot = {}
    if cloud.valid_for_seconds is not None:
        body.queueing_policy = {"valid_until_duration": {"seconds": cloud.valid_for_seconds}}
    return body


def _parent(config: LaunchConfig) -> str:
    return f"projects/{config.cloud.project}/locations/{config.cloud.zone}"
