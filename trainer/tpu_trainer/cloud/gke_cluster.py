"""A cluster of GKE: its address and its authority, from GKE's API."""

from __future__ import annotations

import base64
import binascii
import tempfile
from pathlib import Path

from google.cloud import container_v1

from tpu_trainer.cloud.config import LaunchConfig
from tpu_trainer.cloud.google import Google, RefusedError, RestApi, send
from tpu_trainer.support.errors import CloudError

_States = container_v1.Cluster.Status


def connect_to_cluster(google: Google, config: LaunchConfig) -> RestApi:
    """Returns the API of the run's cluster.

    If the cluster has a DNS-based endpoint that is open to clients outside of Google Cloud's network, it is used: it
    needs no network path, only the permission container.clusters.connect. Otherwise the IP address.

    Raises:
        CloudError: If there is no such cluster, or it has no endpoint.
        UnansweredError: If GKE does not respond.
    """
    cloud = config.cloud
    name = f"projects/{cloud.project}/locations/{cloud.location}/clusters/{cloud.cluster}"
    try:
        cluster = send(google.client(container_v1.ClusterManagerClient).get_cluster, name=name)
    except RefusedError as error:
        if error.code != 404:
            raise
        raise CloudError(
            f"{error}. Set --cloud.cluster and --cloud.cluster_location; gcloud container clusters list --project "
            f"{cloud.project} prints both"
        ) from error
    if cluster.status in (_States.STOPPING, _States.ERROR):
        raise CloudError(f"the cluster {cloud.cluster} is {cluster.status.name}: {cluster.status_message}")
    named = cluster.control_plane_endpoints_config.dns_endpoint_config
    if named.allow_external_traffic and named.endpoint:
        return RestApi(google=google, url=google.cluster.format(endpoint=named.endpoint))
    try:
        authority = base64.b64decode(cluster.master_auth.cluster_ca_certificate, validate=True)
    except binascii.Error:
        authority = b""
    if not authority or not cluster.endpoint:
        raise CloudError(
            f"the cluster {cloud.cluster} has no endpoint yet (status {cluster.status.name}); wait until it is RUNNING"
        )
    return RestApi(
        google=google, url=google.cluster.format(endpoint=cluster.endpoint), verify=_file(authority)
    )


def _file(authority: bytes) -> str:
    """Writes certificates to a file, as `requests` reads them, which is deleted when the process ends."""
    folder = tempfile.TemporaryDirectory(prefix="tokenmill-")
    _folders.append(folder)
    path = Path(folder.name) / "cluster.pem"
    path.write_bytes(authority)
    return str(path)


_folders: list[tempfile.TemporaryDirectory] = []
