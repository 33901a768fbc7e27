"""The interface between training and the devices of a run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np

from tpu_trainer.devices.executor import StepExecutor
from tpu_trainer.network.division import ONE_DEVICE, Division
from tpu_trainer.network.initial_values import InitialValues
from tpu_trainer.network.kernel_check import Function
from tpu_trainer.runs.checkpoint import State
from tpu_trainer.step.task import Task


@dataclass(frozen=True, kw_only=True)
class Target:
    """The properties of the devices that determine a step's program."""

    kernel_generation: str | None = None
    """Generation of the TPU for the attention kernel; None: no kernel."""
    splash: bool = False
    """Whether JAX's splash attention computes what that kernel cannot."""
    cudnn: bool = False
    """Whether cuDNN's kernel computes attention."""
    division: Division = ONE_DEVICE
    """How devices divide one program."""
    compile_gradients: bool = False
    """Whether only the gradients are compiled with XLA: several devices of TensorFlow sum them between programs."""


class Devices(ABC):
    """The devices of a run. `opening.open_devices` opens them."""

    replicas: int
    """Number of replicas that divide a batch."""
    initial: InitialValues
    """Initial values of the variables that are created in `scope`."""
    is_cpu: bool
    """Whether they are CPUs."""

    @property
    @abstractmethod
    def target(self) -> Target:
        """The target for which the task is built.

        Raises:
            UsageError: If there is no attention kernel for these devices, or their generation is unknown.
        """

    @abstractmethod
    def peak_flops(self, *, bfloat16: bool) -> float | None:
        """Returns operations per second of all devices together; None if the peak is unknown, as for CPUs.

        Args:
            bfloat16: Whether products are in bfloat16.
        """

    @abstractmethod
    def scope(self) -> AbstractContextManager[None]:
        """Returns the context in which to build the task."""

    @abstractmethod
    def executor(self, task: Task, *, state: State | None = None) -> StepExecutor:
        """Returns an executor of a task that was built in `scope`.

        Args:
            task: Built for `target`.
            state: The part of the task's state to hold; None: all.

        Raises:
            UsageError: If the devices cannot divide the model.
        """

    @abstractmethod
    def run(self, function: Function, arrays: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Executes a function of named arrays, which each device gets whole, and returns its results.

        Raises:
            Rejected: If the devices do not execute it.
        """
