"""A resource of Google Cloud that has a run's name."""

from __future__ import annotations

from abc import ABC, abstractmethod


class NamedResource(ABC):
    """A resource with the run's name. The methods raise the errors of Api.call."""

    noun: str
    """What it is, such as `queued resource`."""
    delete_command: str
    """A shell command that deletes it."""
    in_parts = False
    """Whether it has parts, which are created and deleted one after the other."""

    @abstractmethod
    def get(self) -> dict | None:
        """Returns the resource; None if it does not exist."""

    def is_complete(self, found: dict) -> bool:
        """Whether `found` has all parts."""
        return True

    @abstractmethod
    def create(self) -> bool:
        """Requests the resource, or its missing parts, without retries. Returns False if one of this name exists."""

    @abstractmethod
    def delete(self, found: dict) -> None:
        """Starts to delete `found`, or its next part; does nothing if it is gone or being deleted."""

    @abstractmethod
    def is_deleting(self, found: dict) -> bool:
        """Whether `found` is being deleted."""

    @abstractmethod
    def identity(self, found: dict) -> str:
        """What another resource of this name does not have."""

    @abstractmethod
    def conflict(self, found: dict) -> str | None:
        """Returns why `found` is not the run's, after `a … of this name exists, but `; None if it is the run's."""
