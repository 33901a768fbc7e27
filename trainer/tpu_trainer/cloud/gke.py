"""The JobSet of a run, and its pods, in a cluster of GKE.

By the Kubernetes API with REST: JobSets are custom resources, for which Kubernetes' Python client has no types either,
and it adds 75 MB. A JobSet's name is unique, so a request that is repeated creates none twice.
"""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any, NamedTuple

from tpu_trainer.cloud.config import LaunchConfig
from tpu_trainer.cloud.gke_cluster import connect_to_cluster
from tpu_trainer.cloud.google import Google, RefusedError, RestApi, UnansweredError
from tpu_trainer.cloud.hosts import MAX_LOGS, ContainerExit, causes_of, describe
from tpu_trainer.cloud.jobset_manifest import API_VERSION, CONTAINER, JOB, manifest
from tpu_trainer.cloud.objects import Objects
from tpu_trainer.cloud.service import OPTIONS, Resource, Service, State, conflict_of
from tpu_trainer.support.errors import CloudError

INSTALL = (
    "kubectl apply --server-side -f "
    "https://github.com/kubernetes-sigs/jobset/releases/download/v0.10.1/manifests.yaml"
)
"""The command that installs the release of JobSet that the manifest is tested with."""
_GROUP = API_VERSION.partition("/")[0]
_LOG_LINES = 60
_LOG_CHARACTERS = 10_000
_START_CHECKS = 5
"""Number of status checks in a row in which a container cannot start before the training fails."""
_CONNECT_ATTEMPTS = 3
_MAX_RESTARTS = "ReachedMaxRestarts"
_CANNOT_START = ("ImagePullBackOff", "InvalidImageName", "CreateContainerConfigError")
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


class _Pods(NamedTuple):
    """The pods of a JobSet that exist."""

    running: int
    waits: list[str]
    """Why pods that are not running wait, as far as it is known; of different reasons, one each."""
    cannot_start: bool
    """Whether a container cannot start, because of its image or its configuration."""
    exits: dict[int, tuple[str, int]]
    """Host number → pod and exit status of its container, if it has ended."""


class Gke(Service):
    """The JobSet of a run, which restarts by itself after a preemption."""

    noun = "JobSet"
    visible_at_once = True

    def __init__(self, google: Google, objects: Objects, config: LaunchConfig) -> None:
        self._google = google
        self._config = config
        cloud = config.cloud
        self._jobsets = f"apis/{API_VERSION}/namespaces/{cloud.namespace}/jobsets"
        self._core = f"api/v1/namespaces/{cloud.namespace}"
        self._jobset: dict[str, Any] = {}
        self._cannot_start = 0
        self._attempts = 0  # to reach the cluster
        slices = "" if cloud.slices == 1 else f"{cloud.slices} slices of "
        self.requested = f"{slices}{cloud.accelerator_type} in {config.place}"
        self.delete_command = (
            f"gcloud container clusters get-credentials {cloud.cluster} --location {cloud.location} --project "
            f"{cloud.project} && kubectl delete jobset {config.name} --namespace {cloud.namespace}"
        )

    @staticmethod
    def preview(config: LaunchConfig) -> dict:
        return manifest(config)

    def refuse(self) -> None:
        """Connects to the cluster and checks that it can run the JobSet.

        Raises:
            CloudError: If the cluster cannot be reached, has no JobSets, or does not permit a request.
        """
        self._api: RestApi = connect_to_cluster(self._google, self._config)
        cloud = self._config.cloud
        try:
            jobset_api = self._api.get(f"apis/{API_VERSION}")
        except UnansweredError as error:
            self._attempts += 1
            if self._attempts < _CONNECT_ATTEMPTS:
                raise
            raise CloudError(
                f"the cluster {cloud.cluster} cannot be reached from here: {error}. For access from outside of its "
                f"network, enable its DNS-based endpoint: gcloud container clusters update {cloud.cluster} --location "
                f"{cloud.location} --project {cloud.project} --enable-dns-access"
            ) from error
        if jobset_api is None:
            raise CloudError(f"the cluster {cloud.cluster} has no JobSets; install them: {INSTALL}")
        missing = [right for right in RIGHTS if not self._permitted(*right)]
        if missing:
            words = ", ".join(
                f"{verb} {'/'.join(filter(None, (resource, part)))}" for verb, _, resource, part in missing
            )
            raise CloudError(
                f"the cluster {cloud.cluster} does not permit this account to {words} in the namespace "
                f"{cloud.namespace}; docs/cloud-tpu.md has the role"
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
        review = self._api.call("POST", "apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)
        return bool(review["status"]["allowed"])

    def find(self) -> Resource | None:
        jobset = self._api.get(f"{self._jobsets}/{self._config.name}")
        if jobset is None:
            return None
        self._jobset = jobset
        options = (jobset["metadata"].get("annotations") or {}).get(OPTIONS)
        return Resource(
            identity=jobset["metadata"]["uid"],
            deleting="deletionTimestamp" in jobset["metadata"],
            conflict=conflict_of(self._config, options, self.delete_command),
        )

    def request(self) -> bool:
        try:
            self._api.call("POST", self._jobsets, manifest(self._config))
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

    def delete(self) -> None:
        """Starts to delete the JobSet and its pods; does nothing if it is gone, whatever has its name now."""
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Foreground",
            "preconditions": {"uid": self._jobset["metadata"]["uid"]},
        }
        try:
            self._api.call("DELETE", f"{self._jobsets}/{self._config.name}", options)
        except RefusedError as error:
            if error.code not in (404, 409):  # gone, or another JobSet has the name
                raise

    def state(self) -> State:
        spec, status = self._jobset["spec"], self._jobset.get("status", {})
        conditions = {each["type"]: each for each in status.get("conditions", []) if each["status"] == "True"}
        if "Completed" in conditions:
            return State("done")
        if failed := conditions.get("Failed"):
            return State("failed", self._failure(failed))
        if spec.get("suspend"):
            warning = self._warning()
            return State("waiting", f"{self._suspended()}{f': {warning}' if warning else ''}")
        job = spec["replicatedJobs"][0]
        restarted = f" (restart {status['restarts']})" if status.get("restarts") else ""
        jobs = status.get("replicatedJobsStatus", [])
        if sum(each.get("ready", 0) for each in jobs) == job["replicas"]:
            self._cannot_start = 0
            return State("active", f"the TPU is active{restarted}")
        pods = self._pods()
        self._cannot_start = self._cannot_start + 1 if pods.cannot_start else 0
        if self._cannot_start >= _START_CHECKS:
            return State("failed", f"the container cannot start: {pods.waits[0]}")
        hosts = job["replicas"] * job["template"]["spec"]["completions"]
        reason = "" if pods.exits else (pods.waits[0] if pods.waits else self._warning())
        waits = f"{pods.running} of {hosts} hosts are running{restarted}"
        return State("waiting", f"{waits}: {reason}" if reason else waits)

    def _suspended(self) -> str:
        queue = self._config.cloud.queue
        if queue is not None:
            return f"waiting in Kueue's queue {queue}"
        patch = '\'{"spec":{"suspend":false}}\''
        return (
            f"the JobSet is suspended; to resume it: kubectl patch jobset {self._config.name} --namespace "
            f"{self._config.cloud.namespace} --type merge --patch {patch}"
        )

    def _failure(self, condition: dict) -> str:
        """Returns why the JobSet has failed."""
        cloud = self._config.cloud
        if condition.get("reason") == _MAX_RESTARTS:
            return (
                f"the TPU was preempted, or a host was lost, more than {cloud.max_preemptions} times "
                "(--cloud.max_preemptions); run the same command to continue"
            )
        pods = self._pods().exits
        causes = causes_of(
            [ContainerExit(host=host, status=status, log="") for host, (_, status) in sorted(pods.items())]
        )
        if not causes:
            return f"the JobSet has failed: {condition.get('reason')}: {condition.get('message')}"
        # A slice can have a thousand hosts.
        logs = [replace(each, log=self._log(pods[each.host][0])) for each in causes[:MAX_LOGS]]
        other_logs = f"kubectl logs POD --namespace {cloud.namespace}, or Cloud Logging, has their output"
        return describe(logs + causes[MAX_LOGS:], other_logs=other_logs)

    def _pods(self) -> _Pods:
        running, waits, exits, cannot_start = 0, [], {}, False
        selector = f"jobset.sigs.k8s.io/jobset-name={self._config.name}"
        for pod in self._api.call("GET", f"{self._core}/pods", labelSelector=selector)["items"]:
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
        return _Pods(running, list(dict.fromkeys(waits)), cannot_start, exits)

    def _host(self, pod: dict) -> int:
        annotations = pod["metadata"].get("annotations", {})
        hosts = self._jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["completions"]
        return int(annotations.get(_SLICE, 0)) * hosts + int(annotations.get(_INDEX, 0))

    def _log(self, pod: str) -> str:
        """Returns the end of a pod's output."""
        try:
            response = self._api.request(
                "GET", f"{self._core}/pods/{pod}/log", container=CONTAINER, tailLines=_LOG_LINES
            )
        except RefusedError as error:
            if error.code != 404:
                raise
            return "(its output is no longer available)"
        return response.content.decode(errors="replace")[-_LOG_CHARACTERS:]

    def _warning(self) -> str | None:
        """Returns the newest warning about the JobSet, its jobs or pods, such as an exceeded quota; None: none."""
        name = self._config.name
        newest, text = "", None
        for event in self._api.call("GET", f"{self._core}/events", fieldSelector="type=Warning")["items"]:
            about = event["involvedObject"].get("name", "")
            moment = event.get("lastTimestamp") or event.get("eventTime") or ""
            if (about == name or about.startswith(f"{name}-{JOB}-")) and moment >= newest:
                newest, text = moment, f"{event.get('reason')}: {event.get('message')}"
        return text
