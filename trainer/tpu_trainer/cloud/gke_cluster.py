"""A cluster of GKE: its address and its authority, from GKE's API."""

from __future__ import annotations

import base64
import binascii
import tempfile
from dataclasses import replace
from pathlib import Path

from tpu_trainer.cloud.api import Api, RefusedError
from tpu_trainer.cloud.config import LaunchConfig
from tpu_trainer.support.errors import CloudError

_STOPPED = ("STOPPING", "ERROR")


def location(config: LaunchConfig) -> str:
    """Returns the cluster's region or zone."""
    return config.cloud.cluster_location or config.cloud.region


def connect_to_cluster(api: Api, config: LaunchConfig) -> tuple[Api, str]:
    """Returns an API with the cluster's certificates, and the URL of the cluster's API.

    If the cluster has a DNS-based endpoint that is open to clients outside of Google Cloud's network, it is used: it
    needs no network path, only the permission container.clusters.connect. Otherwise the IP address.

    Raises:
        CloudError: If there is no such cluster, or it has no endpoint.
        UnansweredError: If GKE does not respond.
    """
    cloud = config.cloud
    place = f"projects/{cloud.project}/locations/{location(config)}"
    try:
        found = api.call("GET", f"{api.container}/v1/{place}/clusters/{cloud.cluster}")
    except RefusedError as error:
        if error.code != 404:
            raise
        raise CloudError(
            f"{error}. Set --cloud.cluster and --cloud.cluster_location; gcloud container clusters list --project "
            f"{cloud.project} prints both"
        ) from error
    if found.get("status") in _STOPPED:
        raise CloudError(
            f"the cluster {cloud.cluster} is {found['status']}: {found.get('statusMessage', '')}"
        )
    named = found.get("controlPlaneEndpointsConfig", {}).get("dnsEndpointConfig", {})
    if named.get("allowExternalTraffic") and named.get("endpoint"):
        return api, api.cluster.format(endpoint=named["endpoint"])
    try:
        authority = base64.b64decode(found["masterAuth"]["clusterCaCertificate"], validate=True)
        endpoint = found["endpoint"]
    except (KeyError, binascii.Error) as error:
        raise CloudError(
            f"the cluster {cloud.cluster} has no endpoint yet (status {found.get('status')}); wait until it is RUNNING"
        ) from error
    return replace(api, verify=_file(authority)), api.cluster.format(endpoint=endpoint)


def _file(authority: bytes) -> str:
    """Writes certificates to a file, as `requests` reads them, which is deleted when the process ends."""
    folder = tempfile.TemporaryDirectory(prefix="tokenmill-")
    _folders.append(folder)
    path = Path(folder.name) / "cluster.pem"
    path.write_bytes(authority)
    return str(path)


_folders: list[tempfile.TemporaryDirectory] = []
