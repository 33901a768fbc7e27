"""Training as a custom job of Vertex AI, on one TPU host."""

from __future__ import annotations

import hashlib
from urllib.parse import urlencode

from tpu_trainer.cloud.api import Api, RefusedError, UnansweredError
from tpu_trainer.cloud.config import LaunchConfig
from tpu_trainer.config_files import dump_fit_config

CANCELLING = "JOB_STATE_CANCELLING"
RUNNING = (
    "JOB_STATE_QUEUED",
    "JOB_STATE_PENDING",
    "JOB_STATE_RUNNING",
    CANCELLING,
    "JOB_STATE_UPDATING",
)
_RUN = "tokenmill_run"
"""The label that tells a run's jobs from all others: a key of its folder."""


def custom_job(config: LaunchConfig) -> dict:
    """The custom job to ask for: `CustomJob` of the interface's version 1."""
    cloud = config.cloud
    scheduling = {"restartJobOnWorkerRestart": True, "timeout": "604800s"}  # at most seven days
    if cloud.spot:
        scheduling["strategy"] = "SPOT"
    spec = {
        "workerPoolSpecs": [
            {
                "replicaCount": "1",
                "machineSpec": {"machineType": cloud.machine_type, "tpuTopology": cloud.topology},
                "containerSpec": {
                    "imageUri": cloud.image,
                    # The text of the file itself; `--config` takes either.
                    "args": ["fit", "--config", dump_fit_config(config.for_fit())],
                },
            }
        ],
        "scheduling": scheduling,
    }
    if cloud.service_account:
        spec["serviceAccount"] = cloud.service_account
    if cloud.network:
        spec["network"] = cloud.network
    labels = {"run": config.name, **cloud.labels, _RUN: _key(config)}
    return {"displayName": config.name, "labels": labels, "jobSpec": spec}


def _key(config: LaunchConfig) -> str:
    return hashlib.sha256(config.output_dir.rstrip("/").encode()).hexdigest()[:32]


class CustomJobs:
    """The custom jobs of a run. Its methods raise what Api.call raises."""

    def __init__(self, api: Api, config: LaunchConfig) -> None:
        self._api = api
        self._config = config
        cloud = config.cloud
        self._all = f"{api.vertex}/v1/projects/{cloud.project}/locations/{cloud.region}/customJobs"
        self._place = f"--project {cloud.project} --region {cloud.region}"
        self.cancel_commands = (
            f"gcloud ai custom-jobs list {self._place} --filter labels.{_RUN}={_key(config)}; "
            f"gcloud ai custom-jobs cancel JOB_ID {self._place}"
        )
        """Find by hand what a request whose answer was lost may have made, and cancel it."""

    def not_ended(self) -> list[dict]:
        """The run's jobs that have not ended, whichever process asked for them; the oldest first."""
        found: list[dict] = []
        token = ""
        while True:
            query = {"filter": f"labels.{_RUN}={_key(self._config)}", "pageSize": 100, "pageToken": token}
            page = self._api.call("GET", f"{self._all}?{urlencode(query)}")
            found += page.get("customJobs", [])
            token = page.get("nextPageToken", "")
            if not token:
                break
        return sorted(
            (job for job in found if state_of(job) in RUNNING),
            key=lambda job: (job["createTime"], job["name"]),
        )

    def create(self) -> dict:
        """Asks for a job, once. The interface has no request ids: after UnansweredError look it up in `not_ended`."""
        return self._api.call("POST", self._all, custom_job(self._config))

    def get(self, name: str) -> dict:
        """The job called `name`."""
        return self._api.call("GET", f"{self._api.vertex}/v1/{name}")

    def cancel(self, name: str) -> None:
        """Has a job cancelled; nothing happens if it has ended or is being cancelled."""
        try:
            self._api.call("POST", f"{self._api.vertex}/v1/{name}:cancel", {})
        except (RefusedError, UnansweredError) as error:
            if state_of(self.get(name)) in set(RUNNING) - {CANCELLING}:
                raise error


def state_of(job: dict) -> str:
    """The state of a job; a new one may have none yet."""
    return job.get("state", "JOB_STATE_PENDING")
