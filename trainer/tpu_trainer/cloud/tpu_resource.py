"""A TPU whose hosts start training at boot, whatever service it is requested from."""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal, NamedTuple

from tpu_trainer.cloud.exits import ContainerExit
from tpu_trainer.cloud.named_resource import NamedResource


class Phase(NamedTuple):
    """How far a requested TPU is."""

    name: Literal["waiting", "failed", "unknown", "active", "preempted"]
    """preempted: Google Cloud takes the TPU away, or has done so."""
    text: str = ""
    """What it waits for, why it failed, or its unknown state."""


class TpuResource(NamedResource):
    """A TPU whose hosts start training at boot. The methods raise the errors of Api.call."""

    @abstractmethod
    def new_attempt(self) -> None:
        """Lets `create` request another TPU than before."""

    @abstractmethod
    def phase(self, found: dict) -> Phase:
        """Returns how far the TPU is."""

    @abstractmethod
    def exits(self, found: dict) -> list[ContainerExit]:
        """Returns the container exits that the hosts have reported, by host number."""
