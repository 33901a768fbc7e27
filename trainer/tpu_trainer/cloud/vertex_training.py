"""Training as a custom job of Vertex AI."""

from __future__ import annotations

import logging

from tpu_trainer.cloud.api import Api
from tpu_trainer.cloud.config import LaunchConfig
from tpu_trainer.cloud.vertex import CANCELLING, RUNNING, CustomJobs, state_of
from tpu_trainer.cloud.watch import CHECKS_OF_UNANSWERED, Watch
from tpu_trainer.support.errors import CloudError

_log = logging.getLogger(__name__)


class VertexTraining:
    """Trains `config` in one custom job."""

    def __init__(self, config: LaunchConfig, api: Api, watch: Watch) -> None:
        self._config = config
        self._jobs = CustomJobs(api, config)
        self._watch = watch

    def run(self) -> None:
        """Trains to the end; raises CloudError if training fails."""
        name = self._find_or_create()
        _log.info(f"launch: {self._config.name}: {name}")
        while (
            state := state_of(job := self._watch.retry_until_answered(lambda: self._jobs.get(name)))
        ) in RUNNING:
            self._watch.log_state(f"{self._config.name}: {state}")
            self._cancel_others(name)
            self._watch.log_progress()
            self._watch.wait()
        self._cancel_others(name)
        self._watch.cleanup_command = None
        if state != "JOB_STATE_SUCCEEDED":
            raise CloudError(f"{name}: {state}: {job.get('error', {}).get('message', 'no reason given')}")

    def cancel(self) -> None:
        """Cancels all jobs of the run that may exist."""
        if self._watch.cleanup_command is None:
            return
        if (job := self._watch.created) is not None:  # a list may lack it at first
            self._watch.retry_until_answered(lambda: self._jobs.cancel(job["name"]))
        for _ in range(CHECKS_OF_UNANSWERED if self._watch.unanswered else 1):
            if self._cancel_others(None):
                self._watch.unanswered = False
            self._watch.wait(at_least=1)
        # An unanswered request may still be executed.
        if not self._watch.unanswered:
            self._watch.cleanup_command = None

    def _find_or_create(self) -> str:
        """Returns the name of the run's active job, or of a new one. Waits for jobs that are being cancelled."""
        while True:
            jobs = self._watch.retry_until_answered(self._jobs.active)
            if jobs:
                self._watch.cleanup_command = self._jobs.cancel_commands
                self._watch.unanswered = False
            for job in jobs:
                if state_of(job) != CANCELLING:
                    return job["name"]
            if jobs:
                self._watch.log_state(f"{self._config.name}: {jobs[0]['name']}: {CANCELLING}")
            elif (job := self._request()) is not None:
                return job["name"]
            self._watch.wait()

    def _request(self) -> dict | None:
        """Returns a new job; None if there is no response, so that the caller lists the run's jobs again."""
        cloud = self._config.cloud
        return self._watch.request(
            self._jobs.create,
            cancel=self.cancel,
            what=f"a {cloud.machine_type} in {cloud.region}",
            if_killed="cancel the job with",
            cleanup_command=self._jobs.cancel_commands,
        )

    def _cancel_others(self, name: str | None) -> bool:
        """Cancels the run's jobs except `name`, as left by unanswered requests. Returns whether there is any job."""
        jobs = self._watch.retry_until_answered(self._jobs.active)
        for job in jobs:
            if job["name"] != name and state_of(job) != CANCELLING:
                _log.info(f"launch: {self._config.name}: cancelling {job['name']}")
                self._watch.retry_until_answered(lambda job=job: self._jobs.cancel(job["name"]))
        return bool(jobs)
