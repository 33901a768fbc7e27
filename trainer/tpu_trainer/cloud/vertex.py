"""Custom jobs of Vertex AI, on one TPU host.

By REST: google-cloud-aiplatform adds 115 MB and twenty packages, for four requests. The API has no request ids, so a
request without a response may have created a job, which `find` cancels if there is another one.
"""

from __future__ import annotations

import hashlib

from tpu_trainer.cloud.config import LaunchConfig
from tpu_trainer.cloud.google import Google, RefusedError, RestApi, UnansweredError
from tpu_trainer.cloud.objects import Objects
from tpu_trainer.cloud.service import Resource, Service, State
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


class VertexAi(Service):
    """The custom jobs of a run."""

    noun = "custom job"
    if_killed = "cancel the job with"

    def __init__(self, google: Google, objects: Objects, config: LaunchConfig) -> None:
        cloud = config.cloud
        self._api = RestApi(
            google=google, url=google.endpoint or f"https://{cloud.region}-aiplatform.googleapis.com"
        )
        self._config = config
        self._jobs = f"v1/projects/{cloud.project}/locations/{cloud.region}/customJobs"
        self._job: dict | None = None  # the one that trains
        self.requested = f"a {cloud.machine_type} in {cloud.region}"
        place = f"--project {cloud.project} --region {cloud.region}"
        self.delete_command = (
            f"gcloud ai custom-jobs list {place} --filter labels.{_RUN}={_key(config)}; "
            f"gcloud ai custom-jobs cancel JOB_ID {place}"
        )

    @staticmethod
    def preview(config: LaunchConfig) -> dict:
        return custom_job(config)

    def find(self) -> Resource | None:
        """Returns the run's active jobs as one resource. Cancels all but one."""
        active = self._active()
        if self._job is None:
            self._job = next((job for job in active if _state_of(job) != CANCELLING), None)
        else:  # a list may lack a new job
            self._job = self._api.call("GET", f"v1/{self._job['name']}")
        for job in active:
            if self._job is not None and job["name"] != self._job["name"]:
                self._cancel(job)
        if self._job is None and not active:
            return None
        return Resource(identity="", deleting=self._job is None or _state_of(self._job) == CANCELLING)

    def request(self) -> bool:
        self._job = self._api.call("POST", self._jobs, custom_job(self._config))
        return True

    def state(self) -> State:
        state = _state_of(self._job)
        text = f"{self._job['name']}: {state}"
        if state in RUNNING:
            return State("active" if state == "JOB_STATE_RUNNING" else "waiting", text)
        if state == "JOB_STATE_SUCCEEDED":
            return State("done")
        return State("failed", f"{text}: {self._job.get('error', {}).get('message', 'no reason given')}")

    def delete(self) -> None:
        """Starts to cancel the job, unless it has ended, and lets `find` return the remaining ones."""
        if self._job is not None:
            self._cancel(self._job)
        self._job = None

    def _cancel(self, job: dict) -> None:
        if _state_of(job) == CANCELLING or _state_of(job) not in RUNNING:
            return
        try:
            self._api.call("POST", f"v1/{job['name']}:cancel", {})
        except (RefusedError, UnansweredError):  # it may have ended, or be cancelled already
            if _state_of(self._api.call("GET", f"v1/{job['name']}")) in set(RUNNING) - {CANCELLING}:
                raise

    def _active(self) -> list[dict]:
        """Returns the run's active jobs, created by any process; the oldest first."""
        jobs: list[dict] = []
        token = ""
        while True:
            query = {"filter": f"labels.{_RUN}={_key(self._config)}", "pageSize": 100, "pageToken": token}
            page = self._api.call("GET", self._jobs, **query)
            jobs += page.get("customJobs", [])
            token = page.get("nextPageToken", "")
            if not token:
                break
        return sorted(
            (job for job in jobs if _state_of(job) in RUNNING),
            key=lambda job: (job["createTime"], job["name"]),
        )


def custom_job(config: LaunchConfig) -> dict:
    """Returns the job to request, a `CustomJob` of API version 1."""
    cloud = config.cloud
    scheduling = {"restartJobOnWorkerRestart": True, "timeout": "604800s"}  # seven days, the maximum
    if cloud.spot:
        scheduling["strategy"] = "SPOT"
    # `--config` accepts the file's content, too.
    arguments = ["fit", "--config", dump_fit_config(config.for_fit())]
    if config.training_strategy == "pjrt":
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


def _state_of(job: dict) -> str:
    """Returns the state of a job; a new one may have none yet."""
    return job.get("state", "JOB_STATE_PENDING")
