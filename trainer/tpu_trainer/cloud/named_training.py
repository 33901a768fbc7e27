"""A training on a resource of Google Cloud that has a name and belongs to a run: others' are left alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NoReturn

from tpu_trainer.cloud.config import LaunchConfig
from tpu_trainer.cloud.named_resource import NamedResource
from tpu_trainer.cloud.watch import CHECKS_OF_UNANSWERED, Watch
from tpu_trainer.support.errors import CloudError

_MAX_CONFLICTS = 10


class NamedTraining(ABC):
    """Trains `config` on `resource`, which is created, followed and deleted."""

    _missing_is_deleted = False
    """Whether a resource that was created and is missing has been deleted, even if it has never been seen."""

    def __init__(self, config: LaunchConfig, resource: NamedResource, watch: Watch) -> None:
        self._config = config
        self._resource = resource
        self._watch = watch
        self._name = config.name
        self._seen = False  # whether the resource has existed since the last request
        self._conflicts = 0

    def run(self) -> None:
        """Trains to the end; raises CloudError if training fails."""
        while True:
            found = self._watch.retry_until_answered(self._resource.get)
            if found is None:
                self._request()
            elif self._resource.is_deleting(found):
                self._seen = self._seen or bool(self._watch.created)
                self._watch.log_state(f"{self._name}: a {self._resource.noun} of this name is being deleted")
            else:
                self._check_owner(found)
                if not self._resource.is_complete(found):
                    self._request()
                elif self._inspect(found):
                    return
            self._watch.wait()

    def cancel(self) -> None:
        """Starts to delete the run's resource if it may exist."""
        if self._watch.cleanup_command is None:
            return
        # A request without an answer may still be executed, and one with an answer may not be visible yet.
        uncertain = self._watch.unanswered or (self._watch.created and not self._seen)
        for _ in range(CHECKS_OF_UNANSWERED if uncertain else 1):
            found = self._watch.retry_until_answered(self._resource.get)
            if found is not None and self._resource.conflict(found) is None:
                uncertain = False
                if self._resource.in_parts:
                    return self._delete(found)
                self._watch.retry_until_answered(lambda found=found: self._resource.delete(found))
            self._watch.wait(at_least=1)
        if not uncertain:
            self._watch.cleanup_command = None

    @abstractmethod
    def _inspect(self, found: dict) -> bool:
        """Returns whether the training is done; raises CloudError if it has failed."""

    @abstractmethod
    def _requested(self) -> str:
        """Returns what is requested and where, for a message."""

    def _request(self) -> None:
        """Requests the resource. The next status check shows whether it exists, even if there is no response."""
        noun = self._resource.noun
        if self._seen or (self._watch.created and self._missing_is_deleted):
            self._seen = True
            self._watch.clean_up(self.cancel)
            raise CloudError(
                f"{self._name}: the {noun} was deleted, but not by this command; run the same command to continue"
            )
        created = self._watch.request(
            self._resource.create,
            cancel=self.cancel,
            what=self._requested(),
            if_killed="the training goes on; delete it with",
            cleanup_command=self._resource.delete_command,
        )
        if created is None:
            return
        self._conflicts = 0 if created else self._conflicts + 1
        if self._conflicts > _MAX_CONFLICTS:
            raise CloudError(
                f"{self._name}: Google Cloud reports that the {noun} is missing, but refuses to create it because it "
                "exists; choose another --cloud.name"
            )

    def _check_owner(self, found: dict) -> None:
        if (reason := self._resource.conflict(found)) is not None:
            self._watch.cleanup_command = None
            raise CloudError(f"{self._name}: a {self._resource.noun} of this name exists, but {reason}")
        self._watch.cleanup_command = self._resource.delete_command
        if self._resource.is_complete(found):
            self._seen, self._watch.unanswered = True, False

    def _fail(self, found: dict, reason: str) -> NoReturn:
        """Deletes `found` and raises CloudError with the reason, also if Google Cloud refuses to delete it."""
        self._watch.clean_up(lambda: self._delete(found))
        raise CloudError(f"{self._name}: {reason}")

    def _delete(self, found: dict) -> None:
        """Deletes `found` and waits until its name is free for a new one."""
        identity = self._resource.identity(found)
        left, deleting = found, False
        while left is not None and self._resource.identity(left) == identity:
            if not deleting:
                self._watch.retry_until_answered(lambda left=left: self._resource.delete(left))
            left = self._watch.retry_until_answered(self._resource.get)
            if left is not None:
                deleting = self._resource.is_deleting(left)
                self._watch.wait()
        self._watch.cleanup_command = None
