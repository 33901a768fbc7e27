"""Training as a JobSet in a cluster of GKE, which restarts by itself after a preemption."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial

from tpu_trainer.cloud.api import Api, UnansweredError
from tpu_trainer.cloud.config import LaunchConfig
from tpu_trainer.cloud.exits import MAX_LOGS, ContainerExit, describe, own_exits
from tpu_trainer.cloud.jobset import JobSet
from tpu_trainer.cloud.jobset_manifest import OUTPUT_DIR, differences, same_content
from tpu_trainer.cloud.watch import Watch
from tpu_trainer.errors import CloudError

_log = logging.getLogger(__name__)

_CHECKS = 3
"""How often to check, after a signal, whether an unanswered request was executed."""
_START_CHECKS = 5
"""Number of status checks in a row in which a container cannot start before the training fails."""
_MAX_CONFLICTS = 10
_MAX_DIFFERENCES = 5
_MAX_RESTARTS = "ReachedMaxRestarts"


class GkeTraining:
    """Trains `config` in one JobSet."""

    def __init__(self, config: LaunchConfig, api: Api, watch: Watch) -> None:
        self._config = config
        self._jobset = JobSet(api, config)
        self._watch = watch
        self._name = config.name
        self._seen = False  # whether the run's JobSet has existed
        self._created = self._connected = False
        self._unanswered = False  # whether the last request had no response
        self._conflicts = self._cannot_start = 0

    def run(self) -> None:
        """Trains to the end; raises CloudError if training fails."""
        self._watch.retry_until_answered(self._jobset.connect)
        self._connected = True
        while True:
            found = self._watch.retry_until_answered(self._jobset.get)
            if found is None:
                self._request()
            elif "deletionTimestamp" in found["metadata"]:
                self._watch.log_state(f"{self._name}: a JobSet of this name is being deleted")
            else:
                self._check_owner(found)
                if self._inspect(found):
                    return
            self._watch.wait()

    def cancel(self) -> None:
        """Starts to delete the run's JobSet if it may exist."""
        if self._watch.cleanup_command is None or not self._connected:
            return
        for _ in range(_CHECKS if self._unanswered else 1):
            found = self._watch.retry_until_answered(self._jobset.get)
            if found is not None and self._is_ours(found):
                self._unanswered = False
                self._watch.retry_until_answered(lambda found=found: self._jobset.delete(found))
            self._watch.wait(at_least=1)
        # An unanswered request may still be executed.
        if not self._unanswered:
            self._watch.cleanup_command = None

    def _request(self) -> None:
        """Creates the JobSet. The next status check shows whether it exists, even if there is no response."""
        if self._seen or self._created:
            self._watch.cleanup_command = None
            raise CloudError(
                f"{self._name}: the JobSet was deleted, but not by this command; run the same command to continue"
            )
        if self._watch.cleanup_command is None:
            cloud = self._config.cloud
            many = "" if cloud.slices == 1 else f"{cloud.slices} slices of "
            _log.info(
                f"launch: {self._name}: requesting {many}{cloud.accelerator_type} in {self._jobset.place}; if this "
                f"command is killed, the training goes on; delete it with: {self._jobset.delete_command}"
            )
        self._watch.cleanup_command = self._jobset.delete_command
        before, self._unanswered = self._unanswered, True
        try:
            with self._watch.signals.deferred():
                self._created = self._jobset.create()
                self._unanswered = False
        except UnansweredError as error:
            self._watch.log_state(f"{self._name}: checking whether the request was executed: {error}")
            return
        except CloudError:
            self._unanswered = before
            if not before:
                self._watch.cleanup_command = None
            raise
        self._conflicts = 0 if self._created else self._conflicts + 1
        if self._conflicts > _MAX_CONFLICTS:
            raise CloudError(
                f"{self._name}: the cluster reports that the JobSet is missing, but refuses to create it because it "
                "exists; choose another --cloud.name"
            )

    def _is_ours(self, found: dict) -> bool:
        annotations = found["metadata"].get("annotations") or {}
        run = annotations.get(OUTPUT_DIR) == self._config.output_dir.rstrip("/")
        return run and same_content(self._jobset.manifest, found)

    def _check_owner(self, found: dict) -> None:
        if not self._is_ours(found):
            self._watch.cleanup_command = None
            place = f"{self._name}: in {self._jobset.place}, a JobSet of this name exists"
            annotations = found["metadata"].get("annotations") or {}
            if annotations.get(OUTPUT_DIR) != self._config.output_dir.rstrip("/"):
                raise CloudError(
                    f"{place}, but not for {self._config.output_dir}; choose another --cloud.name"
                )
            different = differences(self._jobset.manifest, found)[:_MAX_DIFFERENCES] or [
                "it has further options"
            ]
            raise CloudError(
                f"{place}, but with other options: {'; '.join(different)}. Use the same options, or delete it: "
                f"{self._jobset.delete_command}"
            )
        self._watch.cleanup_command = self._jobset.delete_command
        self._seen, self._unanswered = True, False

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
            message = self._failure(failed)
            self._delete(found)
            raise CloudError(f"{self._name}: {message}")
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
            self._delete(found)
            raise CloudError(f"{self._name}: the container cannot start: {pods.waits[0]}")

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

    def _delete(self, found: dict) -> None:
        """Deletes the JobSet and waits until its name is free for a new one."""
        uid = found["metadata"]["uid"]
        deleted = False
        while True:
            if not deleted:
                self._watch.retry_until_answered(lambda: self._jobset.delete(found))
            left = self._watch.retry_until_answered(self._jobset.get)
            if left is None or left["metadata"]["uid"] != uid:
                break
            deleted = "deletionTimestamp" in left["metadata"]
            self._watch.wait()
        self._watch.cleanup_command = None
