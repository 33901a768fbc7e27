"""Training as a JobSet in a cluster of GKE, which restarts by itself after a preemption."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from tpu_trainer.cloud.api import Api
from tpu_trainer.cloud.config import LaunchConfig
from tpu_trainer.cloud.exits import MAX_LOGS, ContainerExit, describe, own_exits
from tpu_trainer.cloud.jobset import JobSet
from tpu_trainer.cloud.named_training import NamedTraining
from tpu_trainer.cloud.watch import Watch

_START_CHECKS = 5
"""Number of status checks in a row in which a container cannot start before the training fails."""
_MAX_RESTARTS = "ReachedMaxRestarts"


class GkeTraining(NamedTraining):
    """Trains `config` in one JobSet."""

    _missing_is_deleted = True

    def __init__(self, config: LaunchConfig, api: Api, watch: Watch) -> None:
        self._jobset = JobSet(api, config)
        super().__init__(config, self._jobset, watch)
        self._connected = False
        self._cannot_start = 0

    def run(self) -> None:
        """Trains to the end; raises CloudError if training fails."""
        self._watch.retry_until_answered(self._jobset.connect)
        self._connected = True
        super().run()

    def cancel(self) -> None:
        """Starts to delete the run's JobSet if it may exist."""
        if self._connected:
            super().cancel()

    def _requested(self) -> str:
        cloud = self._config.cloud
        many = "" if cloud.slices == 1 else f"{cloud.slices} slices of "
        return f"{many}{cloud.accelerator_type} in {self._jobset.place}"

    def _inspect(self, found: dict) -> bool:
        """Returns whether the training is done; raises CloudError if it has failed."""
        status = found.get("status", {})
        conditions = {
            condition["type"]: condition
            for condition in status.get("conditions", [])
            if condition["status"] == "True"
        }
        if "Completed" in conditions:
            self._delete(found)
            return True
        if failed := conditions.get("Failed"):
            self._fail(found, self._failure(failed))
        if found["spec"].get("suspend"):
            warning = self._watch.retry_until_answered(self._jobset.warning)
            self._watch.log_state(f"{self._name}: {self._suspended()}{f': {warning}' if warning else ''}")
            return False
        self._log_pods(found)
        self._watch.log_progress()
        return False

    def _suspended(self) -> str:
        queue = self._config.cloud.queue
        if queue is not None:
            return f"waiting in Kueue's queue {queue}"
        patch = '\'{"spec":{"suspend":false}}\''
        return (
            "the JobSet is suspended; to resume it: kubectl patch jobset "
            f"{self._name} --namespace {self._config.cloud.namespace} --type merge --patch {patch}"
        )

    def _log_pods(self, found: dict) -> None:
        """Prints how many hosts are running, and why others wait; raises CloudError if they cannot start."""
        job, status = found["spec"]["replicatedJobs"][0], found.get("status", {})
        after = f" (restart {status['restarts']})" if status.get("restarts") else ""
        jobs = status.get("replicatedJobsStatus", [])
        if sum(each.get("ready", 0) for each in jobs) == job["replicas"]:
            self._cannot_start = 0
            self._watch.log_state(f"{self._name}: the TPU is active{after}")
            return
        hosts = job["replicas"] * job["template"]["spec"]["completions"]
        pods = self._watch.retry_until_answered(self._jobset.pods)
        if not pods.exits:
            why = pods.waits[:1] or [self._watch.retry_until_answered(self._jobset.warning)]
            reason = f": {why[0]}" if why[0] else ""
            self._watch.log_state(f"{self._name}: {pods.running} of {hosts} hosts are running{after}{reason}")
        self._cannot_start = self._cannot_start + 1 if pods.cannot_start else 0
        if self._cannot_start >= _START_CHECKS:
            self._fail(found, f"the container cannot start: {pods.waits[0]}")

    def _failure(self, condition: dict) -> str:
        """Returns why the JobSet has failed."""
        if condition.get("reason") == _MAX_RESTARTS:
            return (
                f"the TPU was preempted, or a host was lost, more than {self._config.cloud.max_preemptions} times "
                "(--cloud.max_preemptions); run the same command to continue"
            )
        pods = self._watch.retry_until_answered(self._jobset.pods).exits
        exits = [
            ContainerExit(host=host, status=status, log="") for host, (_, status) in sorted(pods.items())
        ]
        if failed := own_exits(exits, preempted=False, pjrt=True):
            # A slice can have a thousand hosts.
            failed[:MAX_LOGS] = [
                replace(
                    each, log=self._watch.retry_until_answered(partial(self._jobset.log, pods[each.host][0]))
                )
                for each in failed[:MAX_LOGS]
            ]
            others = f"kubectl logs POD --namespace {self._config.cloud.namespace}, or Cloud Logging, has their output"
            return describe(failed, others=others)
        return f"the JobSet has failed: {condition.get('reason')}: {condition.get('message')}"
