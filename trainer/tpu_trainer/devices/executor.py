"""The interface between the training loop and the library that runs the devices."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, SupportsFloat

import numpy as np

from tpu_trainer.data.batches import DatasetFunction
from tpu_trainer.network.objectives import BatchSums
from tpu_trainer.runs.channel import Channel
from tpu_trainer.runs.parts import Parts, StoredArray
from tpu_trainer.step.results import NonFinite, RunningSums
from tpu_trainer.support.errors import UsageError


class StepOutput(NamedTuple):
    """Results of executed steps. Converting a value to a float may wait for the devices."""

    input_wait: SupportsFloat
    """Seconds the steps waited for their batches."""
    end_requests: SupportsFloat = 0.0
    """Number of processes that called `request_end` before the last step."""
    save_requests: SupportsFloat = 0.0
    """Number of processes that called `request_save` since the step before."""


class StepExecutor(ABC):
    """Holds the training state on the devices and executes steps.

    A new executor has the state of step 0. If several processes train together, each has an executor, and all must call
    the same methods in the same order, except `request_end`, `request_save`, `sums`, `non_finite` and `state`. Each has
    only a part of the state.
    """

    processes = 1
    """Number of processes that train together."""
    replicas: int
    """Number of replicas that divide a batch."""

    @abstractmethod
    def distribute(self, rows: DatasetFunction) -> Iterable[Any]:
        """Distributes the batches of `rows` to the devices. Each iterator starts at the first batch."""

    @abstractmethod
    def train(self, batches: Iterator[Any], steps: range) -> StepOutput:
        """Executes training steps. May return before they are computed.

        Args:
            batches: Yields the batch of each step.
            steps: Numbers of the steps, from 0: updates made before (`steps.start`) and after (`steps.stop`) them.
        """

    @abstractmethod
    def evaluate(self, batch: Any) -> BatchSums:
        """Returns the sums over a batch as floats. Call it in the context of `evaluated_weights` to use those."""

    @abstractmethod
    def row_sums(self, batch: Any, count: int) -> np.ndarray:
        """Returns SourceSums of each row of an evaluation batch of `count` rows, float32[count, 4]; as `evaluate`."""

    @abstractmethod
    def evaluated_weights(self) -> AbstractContextManager[None]:
        """Context in which `evaluate` uses the average of the weights, if there is one."""

    @abstractmethod
    def sums(self) -> RunningSums:
        """Returns the sums since `clear_sums` as floats. Waits for all steps."""

    @abstractmethod
    def clear_sums(self) -> None:
        """Sets the sums to zero."""

    @abstractmethod
    def non_finite(self) -> NonFinite | None:
        """Returns the first step whose loss or gradient was not finite, if any. Waits for all steps.

        The weights are unusable from that step on.
        """

    def request_end(self) -> None:
        """Counts this process in `end_requests` of all later steps, in all processes. Only if there are several."""
        raise NotImplementedError

    def request_save(self) -> None:
        """Counts this process in `save_requests` of the next step, in all processes. Only if there are several."""
        raise NotImplementedError

    def same_in_all_processes(self, value: int) -> bool:
        """Whether all processes call this with the same value."""
        if self.processes > 1:
            raise NotImplementedError
        return True

    @abstractmethod
    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns name → shape of the state: all values that affect later steps or lines of the log."""

    def channel(self) -> Channel:
        """Returns a channel between the processes. All must call this in the same order."""
        return Channel()

    @abstractmethod
    def state(self) -> Parts:
        """Copies the parts of the state that this process saves to the host's memory.

        They have the names of `state_shapes`; the processes' parts together are the state, without overlaps.
        """

    @abstractmethod
    def load_state(self, values: Iterable[tuple[str, np.ndarray | StoredArray]]) -> None:
        """Sets the state to (name, value) pairs for all names of `state_shapes`. Reads only this process's parts."""

    @abstractmethod
    def profile(self, folder: str) -> AbstractContextManager[None]:
        """Profiles this context into a folder for TensorBoard's profile plugin."""


def check_batch_size(
    batch_size: int, replicas: int, option: str, *, accumulation: int = 1, owner: str | None = None
) -> None:
    """Checks that the micro-batches of all replicas have the same size.

    Args:
        batch_size: Rows in a step.
        replicas: Number of replicas.
        option: The option that sets the batch size, for the error message.
        accumulation: Micro-batches per replica.
        owner: The owner of the replicas, for the error message.

    Raises:
        UsageError: If they do not.
    """
    if batch_size % (replicas * accumulation):
        named = f"{replicas} replicas{'' if owner is None else f' of {owner}'}"
        parts = f"the {named}"
        if accumulation > 1:
            parts = f"{replicas * accumulation}: {named} times --train.accumulation {accumulation}"
        raise UsageError(f"--{option} is {batch_size}: it must be a multiple of {parts}")
