"""The requests of `launch` to the Cloud TPU API and Compute Engine, parsed with the types of their libraries."""

from __future__ import annotations

import json
from collections.abc import Sequence

import proto
import pytest
from google.cloud import compute_v1, tpu_v2

from tests.tpu_trainer.launches import COMPUTE, config
from tpu_trainer.cloud import compute_engine, tpu_vms
from tpu_trainer.cloud.compute_requests import bodies

ACCOUNT = "tokenmill-trainer@my-project.iam.gserviceaccount.com"


def test_a_queued_resource() -> None:
    arguments = "--cloud.spot true --cloud.valid_for 6h --cloud.labels.commit 12ab --cloud.network n"
    arguments += " --cloud.subnetwork s --cloud.internal_ips true --cloud.accelerator_type v5litepod-32"
    arguments += f" --cloud.service_account {ACCOUNT}"
    resource = tpu_vms.queued_resource(config(*arguments.split()), "1a2b")
    [spec] = resource.tpu.node_spec
    assert (spec.parent, spec.node_id) == ("projects/p/locations/europe-west4-b", "first")
    assert resource.queueing_policy.valid_until_duration.total_seconds() == 6 * 3600
    assert "spot" in resource and "guaranteed" not in resource
    node = spec.node
    assert (node.accelerator_type, node.service_account.email) == ("v5litepod-32", ACCOUNT)
    assert dict(node.labels) == {"run": "first", "commit": "12ab"}
    network = node.network_config
    assert (network.network, network.subnetwork, network.enable_external_ips) == ("n", "s", False)
    # Compute Engine's limits for a value and for all values.
    sizes = [len(value.encode()) for value in node.metadata.values()]
    assert max(sizes) <= 256 << 10 and sum(sizes) <= 512 << 10


def unknown_values(message: proto.Message) -> list[str]:
    """Returns the strings of `message` that are not among the values that the API lists for their fields."""
    values = []
    for name in message._meta.fields:
        value = getattr(message, name)
        kind = getattr(type(message), "".join(word.capitalize() for word in name.split("_")), None)
        if name in message and isinstance(value, str) and kind is not None and value not in kind.__members__:
            values.append(f"{type(message).__name__}.{name}: {value}")
        for each in value if isinstance(value, Sequence) and not isinstance(value, str) else [value]:
            if isinstance(each, proto.Message):
                values += unknown_values(each)
    return values


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
    arguments = "--cloud.accelerator_type tpu7x-16 --cloud.internal_ips true --cloud.subnetwork s"
    arguments += f" --cloud.service_account {ACCOUNT} {kind}"
    requests = bodies(config(*COMPUTE, *arguments.split()), "1a2b")
    template, policy, group = (
        message.from_json(json.dumps(requests[part]))
        for part, message in (
            ("template", compute_v1.InstanceTemplate),
            ("policy", compute_v1.ResourcePolicy),
            ("group", compute_v1.InstanceGroupManager),
        )
    )
    assert [unknown_values(each) for each in (template, policy, group)] == [[], [], []]
    properties, scheduling = template.properties, template.properties.scheduling
    assert properties.machine_type == "tpu7x-standard-4t"
    assert policy.workload_policy.accelerator_topology == "2x2x2"
    assert (scheduling.provisioning_model, scheduling.instance_termination_action) == (model, action)
    assert scheduling.on_host_maintenance == "TERMINATE" and not scheduling.automatic_restart
    [interface] = properties.network_interfaces
    assert interface.subnetwork.endswith("regions/europe-west4/subnetworks/s")
    assert not interface.access_configs
    assert properties.service_accounts[0].email == ACCOUNT
    assert (group.target_size, group.target_size_policy.mode) == (2, mode)
    assert group.resource_policies.workload_policy.endswith("/regions/europe-west4/resourcePolicies/first")
    assert sum(len(item.value.encode()) for item in properties.metadata.items) <= 512 << 10


def test_launch_knows_all_states() -> None:
    states = tpu_v2.QueuedResourceState.State
    other_states = {states.ACTIVE, states.FAILED, states.DELETING}
    assert {*tpu_vms.WAITING, *tpu_vms.SUSPENDED} | other_states == set(states)
    kind = compute_v1.ManagedInstance
    other_statuses = {"PENDING", "PROVISIONING", "STAGING", "RUNNING", "UNDEFINED_INSTANCE_STATUS"}
    assert {*compute_engine.TAKEN_STATUSES} | other_statuses == set(kind.InstanceStatus.__members__)
    idle_actions = {"NONE", "REFRESHING", "VERIFYING", "UNDEFINED_CURRENT_ACTION"}
    known_actions = {*compute_engine.TAKEN_ACTIONS, *compute_engine.CREATING}
    assert known_actions | idle_actions == set(kind.CurrentAction.__members__)
