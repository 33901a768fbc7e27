"""A TPU as a queued resource, with hosts that start training by themselves.

Each host runs `host_start.sh` at every start; what it needs to know stands in its metadata. It runs the container and
writes how that ended to a file in the run's folder, whose name has the attempt's: of each new TPU another.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path

from tpu_trainer import files
from tpu_trainer.cloud.api import Api
from tpu_trainer.cloud.config import LaunchConfig
from tpu_trainer.command_line import dump_fit_config
from tpu_trainer.runs.run_folder import LAUNCH_FOLDER

WAITING = ("CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING")
TAKEN_AWAY = ("SUSPENDING", "SUSPENDED")
NODE_TAKEN_AWAY = ("PREEMPTED", "TERMINATED", "STOPPED", "STOPPING")
_ATTEMPT = "tokenmill-attempt"
_START = Path(__file__).with_name("host_start.sh")


@dataclass(frozen=True)
class Ending:
    """How the container ended.

    Attributes:
      status: `fit`'s exit status.
      log: the last lines of what it printed.
    """

    status: int
    log: str


def report_url(config: LaunchConfig, attempt: str) -> str:
    """Where the first host writes how the container ended: the status on the first line, then the end of its log."""
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
            "tokenmill-report": report_url(config, attempt),
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
    """The queued resource of a run: asked for, looked at, deleted."""

    def __init__(self, api: Api, config: LaunchConfig) -> None:
        self._api = api
        self._config = config
        self._all = f"{api.tpu}/v2/{_parent(config)}/queuedResources"
        self._url = f"{self._all}/{config.name}"
        self._node = f"{api.tpu}/v2/{_parent(config)}/nodes/{config.name}"

    def get(self) -> dict | None:
        """What there is; None where there is none."""
        return self._api.call("GET", self._url, missing_ok=True)

    def create(self) -> None:
        """Asks for one; CloudError where it is refused."""
        body = request(self._config, attempt=secrets.token_hex(4))
        self._api.call("POST", f"{self._all}?queuedResourceId={self._config.name}", body)

    def delete(self) -> None:
        """Has it deleted, with its node; that takes a minute or more. Nothing happens where it is gone."""
        self._api.call("DELETE", f"{self._url}?force=true", missing_ok=True)

    def node_state(self) -> str:
        """The state of the TPU itself: READY, PREEMPTED, …"""
        node = self._api.call("GET", self._node, missing_ok=True)
        return "" if node is None else node.get("state", "")

    def ending(self, found: dict) -> Ending | None:
        """How the container of `found` ended; None where it has not."""
        metadata = found["tpu"]["nodeSpec"][0]["node"].get("metadata", {})
        if _ATTEMPT not in metadata:
            return None
        text = self._api.read_object(report_url(self._config, metadata[_ATTEMPT]))
        if text is None:
            return None
        status, _, log = text.partition("\n")
        return Ending(status=int(status), log=log)
