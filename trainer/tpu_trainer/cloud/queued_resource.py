"""A TPU as a queued resource, with hosts that start training by themselves.

Each host runs `host_start.sh` at every start; its metadata holds what it needs to know. It runs the container and
reports how that ended in a file of the run's folder, whose name contains the attempt and, except for the first host,
the host's number. Every new TPU is another attempt.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from pathlib import Path

from tpu_trainer import files
from tpu_trainer.cloud.api import Api, RefusedError
from tpu_trainer.cloud.config import LaunchConfig
from tpu_trainer.config_files import dump_fit_config
from tpu_trainer.runs.run_folder import LAUNCH_FOLDER

WAITING = ("CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING")
TAKEN_AWAY = ("SUSPENDING", "SUSPENDED")
NODE_TAKEN_AWAY = ("PREEMPTED", "TERMINATED", "STOPPED", "STOPPING")
_ATTEMPT = "tokenmill-attempt"
_REPORT = "tokenmill-report"
_START = Path(__file__).with_name("host_start.sh")


@dataclass(frozen=True)
class Ending:
    """How the container of a host ended.

    Attributes:
      host: The host's number. Host 0 runs `fit`; on a slice, the others run `host-server`.
      status: The container's exit status.
      log: The last lines that it printed.
    """

    host: int
    status: int
    log: str


def report_url(config: LaunchConfig, attempt: str) -> str:
    """Where the first host reports how its container ended: the status in the first line, then the end of the log.

    Host N reports in `{attempt}-N.txt` beside it.
    """
    return files.join(config.output_dir, LAUNCH_FOLDER, f"{attempt}.txt")


def request(config: LaunchConfig, attempt: str) -> dict:
    """The queued resource to ask for: `QueuedResource` of the interface's version 2."""
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
            "startup-script": _START.read_text(encoding="utf-8"),
            "tokenmill-image": cloud.image,
            "tokenmill-config": dump_fit_config(config.for_fit()),
            "tokenmill-name": config.name,
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
    """The queued resource of a run: asked for, looked at, deleted. Its methods raise what Api.call raises."""

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
        """Deletes it by hand."""

    def get(self) -> dict | None:
        """What there is; None if there is none."""
        return self._api.call("GET", self._url, missing_ok=True)

    def is_of_run(self, found: dict) -> bool:
        """Whether `found` was asked for to train this run, by this process or another one."""
        metadata = _metadata(found)
        return metadata.get(_REPORT) == report_url(self._config, metadata.get(_ATTEMPT, ""))

    def create(self, attempt: str) -> bool:
        """Asks for one, once; False if there is one of this name already, maybe by a request whose answer was lost.

        The same `attempt` again is the same request to the interface.
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
        """Has it deleted, with its node; that takes minutes. Nothing happens if it is gone or being deleted."""
        try:
            self._api.call("DELETE", f"{self._url}?force=true", missing_ok=True)
        except RefusedError as error:
            found = self.get()
            if found is not None and state_of(found) != "DELETING":
                raise error

    def node_state(self) -> str:
        """The state of the TPU itself: READY, PREEMPTED, …"""
        node = self._api.call("GET", self._node, missing_ok=True)
        return "" if node is None else node.get("state", "")

    def endings(self, found: dict) -> list[Ending]:
        """How the containers of `found` ended, by the hosts' numbers; those that have not ended are left out."""
        attempt = _metadata(found).get(_ATTEMPT)
        if attempt is None:
            return []
        prefix = report_url(self._config, attempt).removesuffix(".txt")
        endings = []
        for url in self._api.list_objects(prefix):
            name = re.fullmatch(r"(?:-(\d+))?\.txt", url.removeprefix(prefix))
            text = self._api.read_object(url) if name else None
            if text is not None:
                status, _, log = text.partition("\n")
                endings.append(Ending(host=int(name[1] or 0), status=int(status), log=log))
        return sorted(endings, key=lambda ending: ending.host)


def state_of(found: dict) -> str:
    """The state of a queued resource."""
    return found.get("state", {}).get("state", "")


def _metadata(found: dict) -> dict[str, str]:
    return found["tpu"]["nodeSpec"][0]["node"].get("metadata", {})
