"""The requests of `tpu_trainer launch`, parsed as the API's message types."""

from __future__ import annotations

import json

from google.cloud import tpu_v2
from google.cloud.aiplatform_v1.types import CustomJob, JobState, Scheduling
from google.protobuf import json_format

from tests.deploy.builds import run_trainer

IMAGE = "europe-west4-docker.pkg.dev/my-project/tokenmill/trainer@sha256:" + "0" * 64
ACCOUNT = "tokenmill-trainer@my-project.iam.gserviceaccount.com"


def request_body(*more: str) -> dict:
    """Returns the body of the request, which `--cloud.dry_run` prints."""
    command = ["launch", "--config", "configs/roberta-base.yaml", "--output_dir", "gs://bucket/runs/first"]
    command += ["--data.train", "gs://bucket/d/train", "--cloud.project", "my-project"]
    command += ["--cloud.zone", "europe-west4-b"]
    command += ["--cloud.image", IMAGE, "--cloud.service_account", ACCOUNT, "--cloud.dry_run", "true"]
    return json.loads(run_trainer("-m", "tpu_trainer", *command, *more))


def as_type(body: dict, kind: type):
    """Parses `body` as a message, which rejects unknown fields and values."""
    message = kind.pb(kind())
    json_format.ParseDict(body, message)
    return kind.wrap(message)


def test_a_queued_resource() -> None:
    more = "--cloud.spot true --cloud.valid_for 6h --cloud.labels.commit 12ab --cloud.network n"
    more += " --cloud.subnetwork s --cloud.internal_ips true --cloud.accelerator_type v5litepod-32"
    resource = as_type(request_body(*more.split()), tpu_v2.QueuedResource)
    [spec] = resource.tpu.node_spec
    assert (spec.parent, spec.node_id) == ("projects/my-project/locations/europe-west4-b", "first")
    assert resource.queueing_policy.valid_until_duration.total_seconds() == 6 * 3600
    assert "spot" in resource and "guaranteed" not in resource
    node = spec.node
    assert (node.accelerator_type, node.service_account.email) == ("v5litepod-32", ACCOUNT)
    assert dict(node.labels) == {"run": "first", "commit": "12ab"}
    network = node.network_config
    assert (network.network, network.subnetwork, network.enable_external_ips) == ("n", "s", False)
    # Compute Engine's limits for a value and for all values.
    assert all(len(value.encode()) <= 256 << 10 for value in node.metadata.values())
    assert sum(len(value.encode()) for value in node.metadata.values()) <= 512 << 10


def test_launch_knows_all_states_of_the_api() -> None:
    code = (
        "import json; from tpu_trainer.cloud import queued_resource as q, vertex; "
        "print(json.dumps([q.WAITING_STATES, q.PREEMPTED_STATES, q.PREEMPTED_NODE_STATES, vertex.RUNNING]))"
    )
    waiting, taken_away, node_taken_away, running = map(set, json.loads(run_trainer("-c", code)))
    states = set(tpu_v2.QueuedResourceState.State.__members__)
    assert waiting | taken_away | {"ACTIVE", "FAILED", "DELETING", "STATE_UNSPECIFIED"} == states
    assert node_taken_away <= set(tpu_v2.Node.State.__members__)
    assert running <= set(JobState.__members__) and "JOB_STATE_SUCCEEDED" not in running


def test_a_custom_job_of_vertex() -> None:
    more = ["--cloud.service", "vertex", "--cloud.spot", "true", "--cloud.machine_type", "ct5lp-hightpu-4t"]
    job = as_type(request_body(*more, "--cloud.topology", "2x2"), CustomJob)
    [pool] = job.job_spec.worker_pool_specs
    assert (pool.machine_spec.machine_type, pool.machine_spec.tpu_topology) == ("ct5lp-hightpu-4t", "2x2")
    assert (pool.replica_count, pool.container_spec.image_uri) == (1, IMAGE)
    assert list(pool.container_spec.args)[:2] == ["fit", "--config"]
    assert job.job_spec.scheduling.strategy == Scheduling.Strategy.SPOT
    assert (job.display_name, job.job_spec.service_account) == ("first", ACCOUNT)
