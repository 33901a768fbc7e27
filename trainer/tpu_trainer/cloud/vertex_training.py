"""A training as a custom job of Vertex AI."""

from __future__ import annotations

from tpu_trainer.cloud.api import Api, UnansweredError
from tpu_trainer.cloud.config import LaunchConfig
from tpu_trainer.cloud.vertex import CANCELLING, RUNNING, CustomJobs, state_of
from tpu_trainer.cloud.watch import Watch, say
from tpu_trainer.errors import CloudError

_LOOKS = 3
"""After a signal, whether a request without an answer was carried out."""


class VertexTraining:
    """The training of `config` as one custom job."""

    def __init__(self, config: LaunchConfig, api: Api, watch: Watch) -> None:
        self._config = config
        self._jobs = CustomJobs(api, config)
        self._watch = watch
        self._unanswered = False  # the last request for a job

    def run(self) -> None:
        """Trains to the end; CloudError if that does not succeed."""
        name = self._job()
        say(f"{self._config.name}: {name}")
        while (state := state_of(job := self._watch.patiently(lambda: self._jobs.get(name)))) in RUNNING:
            self._watch.state(f"{self._config.name}: {state}")
            self._cancel_others(name)
            self._watch.training()
            self._watch.wait()
        self._cancel_others(name)
        self._watch.left = None
        if state != "JOB_STATE_SUCCEEDED":
            raise CloudError(f"{name}: {state}: {job.get('error', {}).get('message', 'no reason given')}")

    def give_back_at_once(self) -> None:
        """Cancels what may run."""
        if self._watch.left is None:
            return
        for _ in range(_LOOKS if self._unanswered else 1):
            if self._cancel_others(None):
                self._unanswered = False
            self._watch.wait(at_least=1)
        # A request without an answer may still be carried out.
        if not self._unanswered:
            self._watch.left = None

    def _job(self) -> str:
        """The name of the run's job: one that runs already, or a new one. One that is being cancelled ends first."""
        while True:
            jobs = self._watch.patiently(self._jobs.not_ended)
            if jobs:
                self._watch.left = self._jobs.cancel_commands
                self._unanswered = False
            for job in jobs:
                if state_of(job) != CANCELLING:
                    return job["name"]
            if jobs:
                self._watch.state(f"{self._config.name}: {jobs[0]['name']}: {CANCELLING}")
            elif (job := self._ask()) is not None:
                return job["name"]
            self._watch.wait()

    def _ask(self) -> dict | None:
        """A new job; None if there is no answer: a look at the run's jobs shows whether it was made."""
        if self._watch.left is None:
            cloud = self._config.cloud
            say(
                f"{self._config.name}: asks for a {cloud.machine_type} in {cloud.region}; should this command be "
                f"killed, cancel the job: {self._jobs.cancel_commands}"
            )
        self._watch.left = self._jobs.cancel_commands
        before, self._unanswered = self._unanswered, True
        try:
            with self._watch.signals.held():
                job = self._jobs.create()
                self._unanswered = False
                return job
        except UnansweredError as error:
            self._watch.state(f"{self._config.name}: looks whether it was asked for: {error}")
            return None
        except CloudError:
            self._unanswered = before
            if not before:
                self._watch.left = None
            raise

    def _cancel_others(self, name: str | None) -> bool:
        """Cancels the run's jobs beside `name`, made by requests whose answer was lost; whether there is any job."""
        jobs = self._watch.patiently(self._jobs.not_ended)
        for job in jobs:
            if job["name"] != name and state_of(job) != CANCELLING:
                say(f"{self._config.name}: cancels {job['name']}")
                self._watch.patiently(lambda job=job: self._jobs.cancel(job["name"]))
        return bool(jobs)
