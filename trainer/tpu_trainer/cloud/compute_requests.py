"""A TPU of Compute Engine: a managed instance group with an instance per host, its instance template, and for several
hosts a workload policy, which connects their chips to one slice.

Source: https://docs.cloud.google.com/compute/docs/tpus/ (create-tpu-mig-multi-host-slice,
tpu-machines), https://docs.cloud.google.com/tpu/docs/ (tpus-and-migs, tpu-os-images, spot-compute,
consume-reservation-compute) and https://docs.cloud.google.com/compute/docs/instance-groups/about-bulk-mode.
"""

from __future__ import annotations

import hashlib
from typing import Any

from tpu_trainer.cloud.config import LaunchConfig
from tpu_trainer.cloud.hosts import host_metadata
from tpu_trainer.cloud.service import recorded_options
from tpu_trainer.cloud.slices import Slice

_DISK_GB = "200"  # of which the trainer's image needs a few
_A_WEEK = 7 * 24 * 3600  # flex-start's maximum
_IMAGES = "projects/ubuntu-os-accelerator-images/global/images/family/"


def bodies(config: LaunchConfig, attempt: str) -> dict[str, dict]:
    """Returns the template, the policy and the group of an attempt, in the order of their creation: API version v1."""
    cloud, name = config.cloud, config.name
    tpu = Slice.parse(cloud.accelerator_type, cloud.topology)
    project = f"projects/{cloud.project}"
    region = f"{project}/regions/{cloud.region}"
    group: dict[str, Any] = {
        "name": name,
        "baseInstanceName": name,
        "instanceTemplate": f"{region}/instanceTemplates/{name}",
        "targetSize": tpu.hosts,
        # `launch` replaces the whole group: a slice cannot continue with a new host.
        "instanceLifecyclePolicy": {"defaultActionOnFailure": "DO_NOTHING"},
        "updatePolicy": {"type": "OPPORTUNISTIC"},
    }
    if cloud.flex_start or cloud.reservation:
        # Only these two can wait for all instances at once.
        group["targetSizePolicy"] = {"mode": "BULK"}
    parts = {"template": _template(config, attempt, tpu)}
    if tpu.hosts > 1:
        policy = {"type": "HIGH_THROUGHPUT", "acceleratorTopology": tpu.topology}
        parts["policy"] = {"name": name, "workloadPolicy": policy}
        group["resourcePolicies"] = {"workloadPolicy": f"{region}/resourcePolicies/{name}"}
    parts["group"] = group
    for body in parts.values():
        body["description"] = description(config)
    return parts


def _template(config: LaunchConfig, attempt: str, tpu: Slice) -> dict:
    cloud = config.cloud
    project = f"projects/{cloud.project}"
    network: dict[str, Any] = {"nicType": "GVNIC"}
    if cloud.subnetwork:
        network["subnetwork"] = f"{project}/regions/{cloud.region}/subnetworks/{cloud.subnetwork}"
    if cloud.network or not cloud.subnetwork:
        network["network"] = f"{project}/global/networks/{cloud.network or 'default'}"
    if not cloud.internal_ips:
        network["accessConfigs"] = [{"name": "External NAT", "type": "ONE_TO_ONE_NAT"}]
    disk = {
        "sourceImage": cloud.boot_image or f"{_IMAGES}{tpu.boot_image_family}",
        "diskSizeGb": _DISK_GB,
        "diskType": tpu.boot_disk_type,
    }
    metadata = host_metadata(config, attempt) | {"tokenmill-hosts": str(tpu.hosts)}
    properties = {
        "machineType": tpu.machine_type,
        "disks": [{"boot": True, "autoDelete": True, "initializeParams": disk}],
        "networkInterfaces": [network],
        "serviceAccounts": [
            {
                "email": cloud.service_account or "default",
                "scopes": ["https://www.googleapis.com/auth/cloud-platform"],
            }
        ],
        "scheduling": _scheduling(config),
        "labels": {"run": config.name, **cloud.labels},
        "metadata": {"items": [{"key": key, "value": value} for key, value in metadata.items()]},
    }
    if cloud.reservation:
        properties["reservationAffinity"] = {
            "consumeReservationType": "SPECIFIC_RESERVATION",
            "key": "compute.googleapis.com/reservation-name",
            "values": [cloud.reservation],
        }
    elif cloud.flex_start:
        properties["reservationAffinity"] = {"consumeReservationType": "NO_RESERVATION"}
    return {"name": config.name, "properties": properties}


def _scheduling(config: LaunchConfig) -> dict:
    cloud = config.cloud
    # TPUs cannot migrate. A host that restarts by itself would find no others.
    scheduling: dict[str, Any] = {"onHostMaintenance": "TERMINATE", "automaticRestart": False}
    if cloud.spot:
        scheduling |= {"provisioningModel": "SPOT", "instanceTerminationAction": "STOP"}
    elif cloud.flex_start:
        scheduling |= {"provisioningModel": "FLEX_START", "instanceTerminationAction": "DELETE"}
        scheduling["maxRunDuration"] = {"seconds": str(_A_WEEK)}
    elif cloud.reservation:
        scheduling |= {"provisioningModel": "RESERVATION_BOUND", "instanceTerminationAction": "DELETE"}
    return scheduling


def description(config: LaunchConfig) -> str:
    """Returns the description of all parts: the run, and a hash of the options, for which it has no room."""
    options = hashlib.sha256(recorded_options(config).encode()).hexdigest()[:32]
    return f"{owner(config)} {options}"


def owner(config: LaunchConfig) -> str:
    """Returns the beginning of the descriptions of a run's resources."""
    return f"tokenmill: {config.output_dir.rstrip('/')}"
