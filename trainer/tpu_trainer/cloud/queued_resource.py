"""A TPU as a queued resource whose hosts start training at boot.

Each host runs `host_start.sh` at every boot, with arguments from its metadata. The script runs the container and
reports its exit in a file of the run folder. The file's name contains the attempt, which is different for each
requested TPU, and the host's number except for host 0.
"""

from __future__ import annotations

import re
import uuid
from pathlib import Path

from tpu_trainer import files
from tpu_trainer.cloud.api import Api, RefusedError
from tpu_trainer.cloud.config import LaunchConfig
from tpu_trainer.cloud.exits import ContainerExit
from tpu_trainer.config_files import dump_fit_config
from tpu_trainer.runs.run_folder import LAUNCH_FOLDER

WAITING_STATES = ("CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING")
PREEMPTED_STATES = ("SUSPENDING", "SUSPENDED")
PREEMPTED_NODE_STATES = ("PREEMPTED", "TERMINATED", "STOPPED", "STOPPING")
_ATTEMPT = "tokenmill-attempt"
_REPORT = "tokenmill-report"
_STARTUP_SCRIPT = Path(__file__).with_name("host_start.sh")


def report_url(config: LaunchConfig, attempt: str) -> str:
    """Returns the URL of host 0's report: the exit status in the first line, then the end of the log.

    Host N writes `{attempt}-N.txt` in the same folder.
    """
    return files.join(config.output_dir, LAUNCH_FOLDER, f"{attempt}.txt")


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
        "metadata": {
            "startup-script": _STARTUP_SCRIPT.read_text(encoding="utf-8"),
            "tokenmill-image": cloud.image,
            "tokenmill-config": dump_fit_config(config.for_fit()),
            "tokenmill-name": config.name,
            "tokenmill-strategy": "pjrt" if config.trains_with_pjrt else "tpu",
            _REPORT: report_url(config, attempt),
            _ATTEMPT: attempt,
        },
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


class QueuedResource:
    """The queued resource of a run. The methods raise the errors of Api.call."""

    def __init__(self, api: Api, config: LaunchConfig) -> None:
        self._api = api
        self._config = config
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

    def belongs_to_run(self, found: dict) -> bool:
        """Returns whether this or another process requested `found` for this run."""
        metadata = _metadata(found)
        return metadata.get(_REPORT) == report_url(self._config, metadata.get(_ATTEMPT, ""))

    def create(self, attempt: str) -> bool:
        """Requests the queued resource, without retries.

        Args:
            attempt: Identifies the request, so that the API executes it only once.

        Returns:
            False if a queued resource of this name exists, perhaps from an unanswered request.
        """
        query = f"queuedResourceId={self._config.name}&requestId={uuid.uuid5(uuid.NAMESPACE_OID, attempt)}"
        try:
            self._api.call("POST", f"{self._all}?{query}", request(self._config, attempt))
        except RefusedError as error:
            if error.code != 409:
                raise
            return False
        return True

    def delete(self) -> None:
        """Starts to delete the queued resource and its node, which takes minutes; does nothing if it is gone."""
        try:
            self._api.call("DELETE", f"{self._url}?force=true", missing_ok=True)
        except RefusedError as error:
            found = self.get()
            if found is not None and state_of(found) != "DELETING":
                raise error

    def node_state(self) -> str:
        """Returns the state of the node, such as READY or PREEMPTED; empty if it does not exist."""
        node = self._api.call("GET", self._node, missing_ok=True)
        return "" if node is None else node.get("state", "")

    def exits(self, found: dict) -> list[ContainerExit]:
        """Returns the container exits that the hosts of `found` have reported, by host number."""
        attempt = _metadata(found).get(_ATTEMPT)
        if attempt is None:
            return []
        prefix = report_url(self._config, attempt).removesuffix(".txt")
        exits = []
        for url in self._api.list_objects(prefix):
            name = re.fullmatch(r"(?:-(\d+))?\.txt", url.removeprefix(prefix))
            text = self._api.read_object(url) if name else None
            if text is not None:
                status, _, log = text.partition("\n")
                exits.append(ContainerExit(host=int(name[1] or 0), status=int(status), log=log))
        return sorted(exits, key=lambda container: container.host)


def state_of(found: dict) -> str:
    """Returns the state of a queued resource."""
    return found.get("state", {}).get("state", "")


def _metadata(found: dict) -> dict[str, str]:
    return found["tpu"]["nodeSpec"][0]["node"].get("metadata", {})
