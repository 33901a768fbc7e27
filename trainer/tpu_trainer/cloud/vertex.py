"""Custom jobs of Vertex AI, on one TPU host."""

from __future__ import annotations

import hashlib
from urllib.parse import urlencode

from tpu_trainer.cloud.api import Api, RefusedError, UnansweredError
from tpu_trainer.cloud.config import LaunchConfig
from tpu_trainer.config.files import dump_fit_config

CANCELLING = "JOB_STATE_CANCELLING"
RUNNING = (
    "JOB_STATE_QUEUED",
    "JOB_STATE_PENDING",
    "JOB_STATE_RUNNING",
    CANCELLING,
    "JOB_STATE_UPDATING",
)
_RUN = "tokenmill_run"
"""The label of a run's jobs; its value is a hash of the run folder's path."""


def custom_job(config: LaunchConfig) -> dict:
    """Returns the request's body, a `CustomJob` of API version 1."""
    cloud = config.cloud
    scheduling = {"restartJobOnWorkerRestart": True, "timeout": "604800s"}  # seven days, the maximum
    if cloud.spot:
        scheduling["strategy"] = "SPOT"
    # `--config` accepts the file's content, too.
    arguments = ["fit", "--config", dump_fit_config(config.for_fit())]
    if config.trains_with_pjrt:
        arguments += ["--mesh.num_processes", "1"]
    spec = {
        "workerPoolSpecs": [
            {
                "replicaCount": "1",
                "machineSpec": {"machineType": cloud.machine_type, "tpuTopology": cloud.topology or "2x4"},
                "containerSpec": {"imageUri": cloud.image, "args": arguments},
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
    """The custom jobs of a run. The methods raise the errors of Api.call."""

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
        """Shell commands that find and cancel the run's jobs."""

    def active(self) -> list[dict]:
        """Returns the run's active jobs, created by any process; the oldest first."""
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
        """Creates a job, without retries: the API has no request ids. After UnansweredError, check `active`."""
        return self._api.call("POST", self._all, custom_job(self._config))

    def get(self, name: str) -> dict:
        """Returns the job `name`."""
        return self._api.call("GET", f"{self._api.vertex}/v1/{name}")

    def cancel(self, name: str) -> None:
        """Starts to cancel a job; does nothing if it has ended or is being cancelled."""
        try:
            self._api.call("POST", f"{self._api.vertex}/v1/{name}:cancel", {})
        except (RefusedError, UnansweredError) as error:
            if state_of(self.get(name)) in set(RUNNING) - {CANCELLING}:
                raise error


def state_of(job: dict) -> str:
    """Returns the state of a job; a new one may have none yet."""
    return job.get("state", "JOB_STATE_PENDING")
