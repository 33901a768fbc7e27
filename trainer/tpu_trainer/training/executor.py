"""What the training loop asks of the devices, whatever library drives them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, SupportsFloat

import numpy as np

from tpu_trainer.data.batches import DatasetFunction
from tpu_trainer.errors import UsageError
from tpu_trainer.network.objectives import Sums


class RunningSums(NamedTuple):
    """Sums over the steps since the last line of the log: float32 scalars on the devices, floats on the host."""

    loss: Any
    correct: Any
    targets: Any
    tokens: Any
    gradient_norm: Any
    """Global norms of the gradients, before clipping."""
    steps: Any
    """Optimizer steps."""
    skipped: Any
    """Steps whose update was left out as a spike."""


class NonFinite(NamedTuple):
    """The first step of this process whose loss or gradient was not finite."""

    step: int
    """Updates made up to and with that step."""
    loss: float
    gradient_norm: float


class StepOutput(NamedTuple):
    """What the host needs of executed steps. Converting a value to a float may wait for the devices."""

    input_wait: SupportsFloat
    """Seconds that the steps waited for their batches."""
    end_requests: SupportsFloat
    """Processes that had called `request_end` before the last step."""


class StepExecutor(ABC):
    """Holds the training state on the devices and executes steps.

    It is built with the state of step 0. If several processes train together, each has an executor, and all call the
    same methods in the same order, except `request_end`, `state`, `sums` and `non_finite`.
    """

    hosts: int
    """Input pipelines: each host feeds its own rows to its replicas."""
    processes: int
    """Processes that train together. One process may drive several hosts."""
    replicas: int
    """Parts that a batch is divided into."""

    @abstractmethod
    def distribute(self, rows: DatasetFunction) -> Iterable[Any]:
        """The batches of `rows` on the devices; each iterator starts at the first batch."""

    @abstractmethod
    def train(self, batches: Iterator[Any], steps: range) -> StepOutput:
        """Executes training steps; returns when they are dispatched, which may be before they are computed.

        Args:
            batches: Gives the batch of each step.
            steps: The steps' numbers, counted from 0: `steps.start` updates have been made, and `steps.stop` will be.
        """

    @abstractmethod
    def evaluate(self, batch: Any) -> Sums:
        """The sums over one batch, as floats; in the context of `evaluated_weights`, of those weights."""

    @abstractmethod
    def evaluated_weights(self) -> AbstractContextManager[None]:
        """In this context, `evaluate` uses the weights that are evaluated and exported: the average if there is one."""

    @abstractmethod
    def sums(self) -> RunningSums:
        """The sums since `clear_sums`, as floats; waits until all steps are computed."""

    @abstractmethod
    def clear_sums(self) -> None:
        """Starts the sums at zero."""

    @abstractmethod
    def non_finite(self) -> NonFinite | None:
        """The first step whose loss or gradient was not finite: no weight after it is usable. Waits for all steps."""

    @abstractmethod
    def request_end(self) -> None:
        """Counts this process among `end_requests` in all steps to come, in all processes."""

    @abstractmethod
    def same_in_all_processes(self, value: int) -> bool:
        """Whether all processes call this with the same value."""

    @abstractmethod
    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name → shape of all that a checkpoint holds: everything that affects later steps or lines of the log."""

    @abstractmethod
    def state(self) -> Mapping[str, np.ndarray]:
        """A copy of the state in the host's memory, by the names of `state_shapes`."""

    @abstractmethod
    def load_state(self, values: Iterable[tuple[str, np.ndarray]]) -> None:
        """Sets the state to (name, value) pairs, one for each of `state_shapes`."""

    @abstractmethod
    def profile(self, folder: str) -> AbstractContextManager[None]:
        """Profiles what is executed in this context, into a folder that TensorBoard's profile plugin reads."""


def check_batch_size(batch_size: int, replicas: int, option: str, *, accumulation: int = 1) -> None:
    """Checks that the rows of a step can be divided evenly.

    Args:
        batch_size: Rows in a step.
        replicas: Parts that they are divided into.
        option: The option that sets the batch size, for the message.
        accumulation: Micro-batches that each part is divided into.

    Raises:
        UsageError: They cannot.
    """
    if batch_size % (replicas * accumulation):
        parts = f"the {replicas} replicas"
        if accumulation > 1:
            parts = (
                f"{replicas * accumulation}: {replicas} replicas times --train.accumulation {accumulation}"
            )
        raise UsageError(f"--{option} is {batch_size}: it must be a multiple of {parts}")
