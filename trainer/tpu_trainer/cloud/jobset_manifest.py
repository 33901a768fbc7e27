"""The manifest of a JobSet that trains on TPU slices of a GKE cluster, one pod per host.

JobSet (https://jobset.sigs.k8s.io) gives each pod a stable DNS name, and recreates all pods if one fails. Source of
node labels and tolerations: https://cloud.google.com/kubernetes-engine/docs/, concepts/plan-tpus, concepts/spot-vms,
how-to/consuming-reservations and how-to/provisioningrequest (flex-start).
"""

from __future__ import annotations

from tpu_trainer.cloud.config import LaunchConfig
from tpu_trainer.cloud.hosts import ABORTED, SIGTERMED
from tpu_trainer.cloud.service import OPTIONS, recorded_options
from tpu_trainer.cloud.slices import Slice
from tpu_trainer.config.files import dump_fit_config
from tpu_trainer.support.errors import ExitStatus

API_VERSION = "jobset.x-k8s.io/v1alpha2"
CONTAINER = JOB = "fit"
GRACE_SECONDS = 120
"""Time to save after SIGTERM. Spot nodes give less."""
_COORDINATOR_PORT = 8476
_A_WEEK = 7 * 24 * 3600
_RETRIED = sorted((ExitStatus.INTERRUPTED, ABORTED, SIGTERMED))
"""Exit statuses of a host that was stopped, or has lost another one."""
# libtpu locks memory for DMA, and Kubernetes has no option for the limit. Source of the value, and of the capability
# that it needs: https://cloud.google.com/kubernetes-engine/docs/how-to/tpus#privileged-mode. Processes are numbered
# over all slices.
_SCRIPT = """\
ulimit -l 68719476736
exec python -m tpu_trainer "$@" --mesh.process_id $((SLICE * HOSTS + HOST))"""


def manifest(config: LaunchConfig) -> dict:
    """Returns the JobSet, of API version jobset.x-k8s.io/v1alpha2."""
    cloud = config.cloud
    tpu = Slice.parse(cloud.accelerator_type, cloud.topology)
    labels = {"run": config.name, **cloud.labels}
    annotations = {OPTIONS: recorded_options(config)}
    if tpu.hosts * cloud.slices > 1:
        # Each slice is a node pool. Its pods must all be in the same one.
        annotations["alpha.jobset.sigs.k8s.io/exclusive-topology"] = "cloud.google.com/gke-nodepool"
    job = {
        "parallelism": tpu.hosts,
        "completions": tpu.hosts,
        "completionMode": "Indexed",
        # The other hosts cannot continue without one that has failed.
        "backoffLimit": 0,
        "podFailurePolicy": {"rules": _pod_failures()},
        "template": {"metadata": {"labels": labels}, "spec": _pod(config, tpu)},
    }
    return {
        "apiVersion": API_VERSION,
        "kind": "JobSet",
        "metadata": {
            "name": config.name,
            "namespace": cloud.namespace,
            "labels": labels | _queue_labels(config),
            "annotations": annotations | _queue_annotations(config),
        },
        "spec": {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "failurePolicy": {
                "maxRestarts": cloud.max_preemptions,
                "restartStrategy": "BlockingRecreate",
                # Of a Job that failed by its podFailurePolicy. All other failures restart the JobSet.
                "rules": [
                    {
                        "name": "failed",
                        "action": "FailJobSet",
                        "onJobFailureReasons": ["PodFailurePolicy"],
                    }
                ],
            },
            "replicatedJobs": [{"name": JOB, "replicas": cloud.slices, "template": {"spec": job}}],
            # If no `launch` deletes it.
            "ttlSecondsAfterFinished": _A_WEEK,
        },
    }


def _queue_labels(config: LaunchConfig) -> dict[str, str]:
    return {} if config.cloud.queue is None else {"kueue.x-k8s.io/queue-name": config.cloud.queue}


def _queue_annotations(config: LaunchConfig) -> dict[str, str]:
    cloud = config.cloud
    if cloud.queue is None or not cloud.flex_start:
        return {}
    # Flex-start's maximum.
    return {"provreq.kueue.x-k8s.io/maxRunDurationSeconds": str(_A_WEEK)}


def _pod_failures() -> list[dict]:
    return [
        # Preempted, evicted, or on a lost node. The Job fails with another reason, so the JobSet restarts.
        {"action": "Count", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {
            "action": "FailJob",
            "onExitCodes": {
                "containerName": CONTAINER,
                "operator": "NotIn",
                "values": [int(status) for status in _RETRIED],
            },
        },
    ]


def _pod(config: LaunchConfig, tpu: Slice) -> dict:
    cloud = config.cloud
    selector = {
        "cloud.google.com/gke-tpu-accelerator": tpu.gke_accelerator,
        "cloud.google.com/gke-tpu-topology": tpu.topology,
    }
    # Nodes of these kinds may have taints of the same names.
    tainted = []
    if cloud.spot:
        tainted.append("cloud.google.com/gke-spot")
    if cloud.flex_start:
        tainted.append("cloud.google.com/gke-flex-start")
    selector |= dict.fromkeys(tainted, "true")
    if cloud.flex_start and cloud.queue:
        tainted.append("cloud.google.com/gke-queued")
    if cloud.reservation:
        selector["cloud.google.com/reservation-name"] = cloud.reservation
        selector["cloud.google.com/reservation-affinity"] = "specific"
    pod = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "serviceAccountName": cloud.service_account or "default",
        # Google's libraries get the pod's identity from GKE's metadata server.
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "nodeSelector": selector,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [_container(config, tpu)],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
    }
    if tainted:
        pod["tolerations"] = [
            {"key": name, "operator": "Equal", "value": "true", "effect": "NoSchedule"} for name in tainted
        ]
    return pod


def _container(config: LaunchConfig, tpu: Slice) -> dict:
    cloud = config.cloud
    chips = {"google.com/tpu": str(tpu.chips_per_host)}
    address = f"{config.name}-{JOB}-0-0.{config.name}:{_COORDINATOR_PORT}"
    # `--config` accepts the file's content, too.
    arguments = ["fit", "--config", dump_fit_config(config.for_fit())]
    arguments += ["--mesh.coordinator_address", address]
    arguments += ["--mesh.num_processes", str(tpu.hosts * cloud.slices)]
    return {
        "name": CONTAINER,
        "image": cloud.image,
        "command": [_escape(word) for word in ("tini", "--", "sh", "-c", _SCRIPT, "fit")],
        "args": [_escape(word) for word in arguments],
        "env": [
            {"name": "HOSTS", "value": str(tpu.hosts)},
            _from_annotation("HOST", "batch.kubernetes.io/job-completion-index"),
            _from_annotation("SLICE", "jobset.sigs.k8s.io/job-index"),
        ],
        # libtpu's, and the coordinator's.
        "ports": [{"containerPort": 8471}, {"containerPort": _COORDINATOR_PORT}],
        "resources": {"limits": chips, "requests": chips},
        # Root, because the TPU's devices belong to root, and `ulimit` needs SYS_RESOURCE; without root's other rights.
        "securityContext": {
            "runAsUser": 0,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"], "add": ["SYS_RESOURCE"]},
        },
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }


def _from_annotation(name: str, annotation: str) -> dict:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{annotation}']"}}}


def _escape(word: str) -> str:
    """Returns a word of a command that Kubernetes, which replaces $(NAME), expands to `word`."""
    return word.replace("$", "$$")
