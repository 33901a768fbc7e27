"""Training as a custom job of Vertex AI, on one TPU host."""

from __future__ import annotations

from tpu_trainer.cloud.config import LaunchConfig
from tpu_trainer.command_line import dump_fit_config

RUNNING = (
    "JOB_STATE_QUEUED",
    "JOB_STATE_PENDING",
    "JOB_STATE_RUNNING",
    "JOB_STATE_CANCELLING",
    "JOB_STATE_UPDATING",
)


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
    return {"displayName": config.name, "labels": {"run": config.name, **cloud.labels}, "jobSpec": spec}
