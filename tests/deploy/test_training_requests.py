"""The requests of `tpu_trainer launch`, parsed as the API's message types."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import proto
import pytest
from google.cloud import compute_v1, tpu_v2
from google.cloud.aiplatform_v1.types import CustomJob, JobState, Scheduling
from google.protobuf import json_format

from tests.deploy.builds import ROOT, run_trainer

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
        "import json; from tpu_trainer.cloud import tpu_vms as t, vertex; "
        "names = lambda states: [s.name for s in states]; "
        "print(json.dumps([*map(names, (t.WAITING, t.SUSPENDED, t.TAKEN_NODES)), vertex.RUNNING]))"
    )
    waiting, taken_away, node_taken_away, running = map(set, json.loads(run_trainer("-c", code)))
    states = set(tpu_v2.QueuedResourceState.State.__members__)
    assert waiting | taken_away | {"ACTIVE", "FAILED", "DELETING", "STATE_UNSPECIFIED"} == states
    assert node_taken_away <= set(tpu_v2.Node.State.__members__)
    assert running <= set(JobState.__members__) and "JOB_STATE_SUCCEEDED" not in running


def unknown_values(message: proto.Message) -> list[str]:
    """Returns the strings of `message` that are not among the values that the API lists for their fields."""
    found = []
    for name in message._meta.fields:
        value = getattr(message, name)
        kind = getattr(type(message), "".join(word.capitalize() for word in name.split("_")), None)
        if name in message and isinstance(value, str) and kind is not None and value not in kind.__members__:
            found.append(f"{type(message).__name__}.{name}: {value}")
        for each in value if isinstance(value, Sequence) and not isinstance(value, str) else [value]:
            if isinstance(each, proto.Message):
                found += unknown_values(each)
    return found


@pytest.mark.parametrize(
    ("kind", "model", "action", "mode"),
    [
        ("", "", "", ""),
        ("--cloud.spot true", "SPOT", "STOP", ""),
        ("--cloud.flex_start true", "FLEX_START", "DELETE", "BULK"),
        ("--cloud.reservation r", "RESERVATION_BOUND", "DELETE", "BULK"),
    ],
)
def test_a_slice_of_compute_engine(kind: str, model: str, action: str, mode: str) -> None:
    more = "--cloud.service compute --cloud.accelerator_type tpu7x-16 --cloud.internal_ips true --cloud.subnetwork s"
    bodies = request_body(*more.split(), *kind.split())
    template = as_type(bodies["template"], compute_v1.InstanceTemplate)
    policy = as_type(bodies["policy"], compute_v1.ResourcePolicy)
    group = as_type(bodies["group"], compute_v1.InstanceGroupManager)
    assert [unknown_values(each) for each in (template, policy, group)] == [[], [], []]
    properties = template.properties
    assert (
        properties.machine_type == "tpu7x-standard-4t"
        and policy.workload_policy.accelerator_topology == "2x2x2"
    )
    scheduling = properties.scheduling
    assert (scheduling.provisioning_model, scheduling.instance_termination_action) == (model, action)
    assert scheduling.on_host_maintenance == "TERMINATE" and not scheduling.automatic_restart
    [interface] = properties.network_interfaces
    assert (
        interface.subnetwork.endswith("regions/europe-west4/subnetworks/s") and not interface.access_configs
    )
    assert properties.service_accounts[0].email == ACCOUNT
    assert (group.target_size, group.target_size_policy.mode) == (2, mode)
    assert group.resource_policies.workload_policy.endswith("/regions/europe-west4/resourcePolicies/first")
    assert sum(len(item.value.encode()) for item in properties.metadata.items) <= 512 << 10


def test_launch_knows_all_states_of_instances() -> None:
    code = (
        "import json; from tpu_trainer.cloud import compute_engine as g; "
        "print(json.dumps([g.TAKEN_STATUSES, g.TAKEN_ACTIONS, g.CREATING]))"
    )
    taken, taken_actions, creating = map(set, json.loads(run_trainer("-c", code)))
    kind = compute_v1.ManagedInstance
    coming = {"PENDING", "PROVISIONING", "STAGING", "RUNNING", "UNDEFINED_INSTANCE_STATUS"}
    assert taken | coming == set(kind.InstanceStatus.__members__)
    others = {"NONE", "REFRESHING", "VERIFYING", "UNDEFINED_CURRENT_ACTION"}
    assert taken_actions | creating | others == set(kind.CurrentAction.__members__)


def test_a_custom_job_of_vertex() -> None:
    more = ["--cloud.service", "vertex", "--cloud.spot", "true", "--cloud.machine_type", "ct5lp-hightpu-4t"]
    job = as_type(request_body(*more, "--cloud.topology", "2x2"), CustomJob)
    [pool] = job.job_spec.worker_pool_specs
    assert (pool.machine_spec.machine_type, pool.machine_spec.tpu_topology) == ("ct5lp-hightpu-4t", "2x2")
    assert (pool.replica_count, pool.container_spec.image_uri) == (1, IMAGE)
    assert list(pool.container_spec.args)[:2] == ["fit", "--config"]
    assert job.job_spec.scheduling.strategy == Scheduling.Strategy.SPOT
    assert (job.display_name, job.job_spec.service_account) == ("first", ACCOUNT)


# By the IAM sections of the methods in Compute Engine's REST reference.
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
    needed = {f"compute.{kind}.{verb}" for kind, verbs in COMPUTE_PERMISSIONS.items() for verb in verbs}
    assert needed <= set(re.findall(r"compute\.\w+\.\w+", role))
