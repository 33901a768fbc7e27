"""Vertex AI's requests of `tpu_trainer launch`, parsed as the API's message types, and permissions in the docs."""

from __future__ import annotations

import json
import re

from google.cloud.aiplatform_v1.types import CustomJob, JobState, Scheduling
from google.protobuf import json_format

from tests.deploy.builds import ROOT, run_trainer

IMAGE = "europe-west4-docker.pkg.dev/my-project/tokenmill/trainer@sha256:" + "0" * 64
ACCOUNT = "tokenmill-trainer@my-project.iam.gserviceaccount.com"


def test_a_custom_job_of_vertex() -> None:
    command = ["launch", "--config", "roberta-base", "--output_dir", "gs://bucket/runs/first"]
    command += ["--data.train", "gs://bucket/d/train", "--cloud.project", "my-project"]
    command += ["--cloud.zone", "europe-west4-b", "--cloud.image", IMAGE, "--cloud.service_account", ACCOUNT]
    command += ["--cloud.service", "vertex", "--cloud.spot", "true", "--cloud.dry_run", "true"]
    command += ["--cloud.machine_type", "ct5lp-hightpu-4t", "--cloud.topology", "2x2"]
    message = CustomJob.pb(CustomJob())
    # Unknown fields and values are errors.
    json_format.ParseDict(json.loads(run_trainer("-m", "tpu_trainer", *command)), message)
    job = CustomJob.wrap(message)
    [pool] = job.job_spec.worker_pool_specs
    assert (pool.machine_spec.machine_type, pool.machine_spec.tpu_topology) == ("ct5lp-hightpu-4t", "2x2")
    assert (pool.replica_count, pool.container_spec.image_uri) == (1, IMAGE)
    assert list(pool.container_spec.args)[:2] == ["fit", "--config"]
    assert job.job_spec.scheduling.strategy == Scheduling.Strategy.SPOT
    assert (job.display_name, job.job_spec.service_account) == ("first", ACCOUNT)


def test_launch_knows_the_states_of_jobs() -> None:
    code = "import json; from tpu_trainer.cloud import vertex; print(json.dumps(vertex.RUNNING))"
    running_states = set(json.loads(run_trainer("-c", code)))
    assert running_states <= set(JobState.__members__) and "JOB_STATE_SUCCEEDED" not in running_states


# From the IAM sections of the methods in Compute Engine's REST reference.
COMPUTE_PERMISSIONS = {
    "instanceTemplates": ("create", "get", "delete"),
    "resourcePolicies": ("create", "get", "delete"),
    "instanceGroupManagers": ("create", "get", "delete"),
    "instanceGroups": ("delete",),
    "instances": ("create", "setMetadata"),
    "disks": ("create",),
    "images": ("useReadOnly",),
    "subnetworks": ("use",),
    "zoneOperations": ("get",),
    "regionOperations": ("get",),
}


def test_the_documented_role_permits_every_request_of_compute_engine() -> None:
    text = (ROOT / "docs" / "cloud-tpu.md").read_text(encoding="utf-8")
    role = text.partition("roles create tokenmillCompute")[2].partition("```")[0]
    needed_permissions = {
        f"compute.{kind}.{verb}" for kind, verbs in COMPUTE_PERMISSIONS.items() for verb in verbs
    }
    assert needed_permissions <= set(re.findall(r"compute\.\w+\.\w+", role))
