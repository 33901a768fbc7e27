"""The JobSet of a run, and its pods, in a cluster of GKE.

By the Kubernetes API with the sessions and errors of api.py: JobSets are custom resources, for which Kubernetes' Python
client has no types either.
"""

from __future__ import annotations

import shlex
from typing import NamedTuple
from urllib.parse import urlencode

from tpu_trainer.cloud.api import Api, RefusedError, UnansweredError
from tpu_trainer.cloud.config import LaunchConfig
from tpu_trainer.cloud.differences import differences
from tpu_trainer.cloud.gke_cluster import connect_to_cluster, location
from tpu_trainer.cloud.jobset_manifest import (
    API_VERSION,
    CONTAINER,
    JOB,
    OUTPUT_DIR,
    compared,
    manifest,
    same_content,
)
from tpu_trainer.cloud.named_resource import NamedResource
from tpu_trainer.support.errors import CloudError

INSTALL = (
    "kubectl apply --server-side -f "
    "https://github.com/kubernetes-sigs/jobset/releases/download/v0.10.1/manifests.yaml"
)
"""The command that installs the release of JobSet that the manifest is tested with."""
_GROUP = API_VERSION.partition("/")[0]
_LOG_LINES = 60
_LOG_CHARACTERS = 10_000
_INDEX, _SLICE = "batch.kubernetes.io/job-completion-index", "jobset.sigs.k8s.io/job-index"
RIGHTS = (
    ("get", _GROUP, "jobsets", ""),
    ("create", _GROUP, "jobsets", ""),
    ("delete", _GROUP, "jobsets", ""),
    ("list", "", "pods", ""),
    ("get", "", "pods", "log"),
    ("list", "", "events", ""),
)
"""Verb, API group, resource and subresource of each request."""


class Pods(NamedTuple):
    """The pods of a JobSet that exist."""

    running: int
    waits: list[str]
    """Why pods that are not running wait, as far as it is known; of different reasons, one each."""
    cannot_start: bool
    """Whether a container cannot start, because of its image or its configuration."""
    exits: dict[int, tuple[str, int]]
    """Host number → pod and exit status of its container, if it has ended."""


class JobSet(NamedResource):
    """The JobSet of a run. The methods raise the errors of Api.call."""

    noun = "JobSet"

    def __init__(self, api: Api, config: LaunchConfig) -> None:
        self._google = api
        self._config = config
        cloud = config.cloud
        self.place = f"{cloud.project}/{location(config)}/{cloud.cluster}/{cloud.namespace}"
        """Project, location, cluster and namespace."""
        self.manifest = manifest(config)
        credentials = (
            f"gcloud container clusters get-credentials {cloud.cluster} --location {location(config)}"
        )
        delete = f"kubectl delete jobset {config.name} --namespace {cloud.namespace}"
        self.delete_command = f"{credentials} --project {cloud.project} && {delete}"
        """A shell command that deletes the JobSet."""

    def connect(self) -> None:
        """Connects to the cluster and checks, before anything is created, that it can run the JobSet.

        Raises:
            CloudError: If the cluster cannot be reached, has no JobSets, or does not permit a request.
        """
        self._api, self._url = connect_to_cluster(self._google, self._config)
        cloud = self._config.cloud
        namespace = cloud.namespace
        self._jobsets = f"{self._url}/apis/{API_VERSION}/namespaces/{namespace}/jobsets"
        self._core = f"{self._url}/api/v1/namespaces/{namespace}"
        try:
            known = self._api.call("GET", f"{self._url}/apis/{API_VERSION}", missing_ok=True)
        except UnansweredError as error:
            raise CloudError(
                f"the cluster {cloud.cluster} cannot be reached from here: {error}. For access from outside of its "
                f"network, enable its DNS-based endpoint: gcloud container clusters update {cloud.cluster} --location "
                f"{location(self._config)} --project {cloud.project} --enable-dns-access"
            ) from error
        if known is None:
            raise CloudError(f"the cluster {cloud.cluster} has no JobSets; install them: {INSTALL}")
        missing = [right for right in RIGHTS if not self._permitted(*right)]
        if missing:
            words = ", ".join(
                f"{verb} {'/'.join(filter(None, (resource, part)))}" for verb, _, resource, part in missing
            )
            raise CloudError(
                f"the cluster {cloud.cluster} does not permit this account to {words} in the namespace {namespace}; "
                "docs/cloud-tpu.md has the role"
            )

    def _permitted(self, verb: str, group: str, resource: str, part: str) -> bool:
        attributes = {
            "namespace": self._config.cloud.namespace,
            "verb": verb,
            "group": group,
            "resource": resource,
            "subresource": part,
        }
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        url = f"{self._url}/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        return bool(self._api.call("POST", url, body)["status"]["allowed"])

    def get(self) -> dict | None:
        """Returns the JobSet; None if it does not exist."""
        return self._api.call("GET", f"{self._jobsets}/{self._config.name}", missing_ok=True)

    def create(self) -> bool:
        """Creates the JobSet, without retries. Returns False if one of this name exists."""
        try:
            self._api.call("POST", self._jobsets, self.manifest)
        except RefusedError as error:
            if error.code == 404:
                namespace = self._config.cloud.namespace
                raise CloudError(
                    f"{error}. Create the namespace: kubectl create namespace {shlex.quote(namespace)}"
                ) from error
            if error.code != 409:
                raise
            return False
        return True

    def delete(self, found: dict) -> None:
        """Starts to delete the JobSet `found` and its pods; does nothing if it is gone, whatever has its name now."""
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Foreground",
            "preconditions": {"uid": found["metadata"]["uid"]},
        }
        try:
            self._api.call("DELETE", f"{self._jobsets}/{self._config.name}", options, missing_ok=True)
        except RefusedError as error:
            if error.code != 409:  # another JobSet has the name
                raise

    def is_deleting(self, found: dict) -> bool:
        """Whether `found` is being deleted."""
        return "deletionTimestamp" in found["metadata"]

    def identity(self, found: dict) -> str:
        """What another JobSet of this name does not have."""
        return found["metadata"]["uid"]

    def conflict(self, found: dict) -> str | None:
        """Returns why `found` is not the run's, or has other options; None if it is the run's."""
        annotations = found["metadata"].get("annotations") or {}
        if annotations.get(OUTPUT_DIR) != self._config.output_dir.rstrip("/"):
            return f"not for {self._config.output_dir}; choose another --cloud.name"
        if same_content(self.manifest, found):
            return None
        different = differences(compared(self.manifest), compared(found)) or "it has further options"
        return f"with other options: {different}. Use the same options, or delete it: {self.delete_command}"

    def pods(self) -> Pods:
        """Returns the state of the JobSet's pods."""
        query = urlencode({"labelSelector": f"jobset.sigs.k8s.io/jobset-name={self._config.name}"})
        running, waits, exits, cannot_start = 0, [], {}, False
        for pod in self._api.call("GET", f"{self._core}/pods?{query}")["items"]:
            status = pod.get("status", {})
            [state] = [
                each.get("state", {})
                for each in status.get("containerStatuses", [])
                if each["name"] == CONTAINER
            ] or [{}]
            if "terminated" in state:
                exits[self._host(pod)] = (pod["metadata"]["name"], state["terminated"]["exitCode"])
            elif status.get("phase") == "Running":
                running += 1
            elif "waiting" in state and (reason := state["waiting"].get("reason")) != "ContainerCreating":
                waits.append(f"{reason}: {state['waiting'].get('message', '')}".rstrip(": "))
                cannot_start = cannot_start or reason in _CANNOT_START
            else:
                waits += [
                    f"{condition.get('reason', 'Unscheduled')}: {condition['message']}"
                    for condition in status.get("conditions", [])
                    if condition["type"] == "PodScheduled" and condition["status"] == "False"
                    and condition.get("message")
                ]  # fmt: skip
        return Pods(running, list(dict.fromkeys(waits)), cannot_start, exits)

    def _host(self, pod: dict) -> int:
        annotations = pod["metadata"].get("annotations", {})
        job = self.manifest["spec"]["replicatedJobs"][0]["template"]["spec"]
        return int(annotations.get(_SLICE, 0)) * job["completions"] + int(annotations.get(_INDEX, 0))

    def log(self, pod: str) -> str:
        """Returns the end of a pod's output."""
        query = urlencode({"container": CONTAINER, "tailLines": _LOG_LINES})
        text = self._api.read_text(f"{self._core}/pods/{pod}/log?{query}")
        return "(its output is no longer available)" if text is None else text[-_LOG_CHARACTERS:]

    def warning(self) -> str | None:
        """Returns the newest warning about the JobSet, its jobs or pods, such as an exceeded quota; None: none."""
        query = urlencode({"fieldSelector": "type=Warning"})
        name = self._config.name
        newest, text = "", None
        for event in self._api.call("GET", f"{self._core}/events?{query}")["items"]:
            about = event["involvedObject"].get("name", "")
            at = event.get("lastTimestamp") or event.get("eventTime") or ""
            if (about == name or about.startswith(f"{name}-{JOB}-")) and at >= newest:
                newest, text = at, f"{event.get('reason')}: {event.get('message')}"
        return text


_CANNOT_START = ("ImagePullBackOff", "InvalidImageName", "CreateContainerConfigError")
