"""The devices of a tf.distribute strategy."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from functools import cached_property

import numpy as np
import tensorflow as tf

from tpu_trainer.config import FitConfig
from tpu_trainer.devices.devices import Devices, Target
from tpu_trainer.devices.peak_flops import gpu_peak_flops, tpu_peak_flops
from tpu_trainer.devices.tensorflow.executor import TensorFlowExecutor
from tpu_trainer.devices.tensorflow.strategy import build_strategy, is_tpu
from tpu_trainer.devices.tensorflow.tpu_host import UnknownTpuError, tpu_generation
from tpu_trainer.network.initial_values import InitialValues
from tpu_trainer.network.kernel_check import Function, Rejected
from tpu_trainer.runs.checkpoint import State
from tpu_trainer.step.task import Task
from tpu_trainer.support.errors import UsageError

_log = logging.getLogger(__name__)


class TensorFlowDevices(Devices):
    """Each device has a replica of the model."""

    def __init__(self, config: FitConfig) -> None:
        """Raises UsageError if this machine lacks the devices."""
        self._config = config
        self._strategy = build_strategy(config.strategy)
        self._is_tpu = is_tpu(self._strategy)
        # TPUs are always deterministic.
        self._deterministic = config.train.deterministic and not self._is_tpu
        if self._deterministic:
            tf.config.experimental.enable_op_determinism()
        self.replicas = self._strategy.num_replicas_in_sync
        self.initial = InitialValues()
        self.is_cpu = not self._is_tpu and not tf.config.get_visible_devices("GPU")

    @cached_property
    def _generation(self) -> str | None:
        """Generation of the TPU; None for other devices and, with a line on stderr, if only MFU needs it."""
        if not self._is_tpu:
            return None
        try:
            return tpu_generation(self._config.tpu)
        except UnknownTpuError as error:
            if self._config.train.attention_kernel:
                raise UsageError(f"--train.attention_kernel: {error}") from error
            _log.warning(f"fit: without mfu: {error}")
            return None

    @property
    def target(self) -> Target:
        return Target(
            kernel_generation=self._generation if self._config.train.attention_kernel else None,
            compile_gradients=self.replicas > 1 and not self._is_tpu,
        )

    def peak_flops(self, *, bfloat16: bool) -> float | None:
        gpus = tf.config.get_visible_devices("GPU")
        flops_per_device = None
        if self._is_tpu:
            flops_per_device = None if self._generation is None else tpu_peak_flops(self._generation)
        elif gpus:
            name = tf.config.experimental.get_device_details(gpus[0]).get("device_name", "")
            flops_per_device = gpu_peak_flops(name, bfloat16=bfloat16)
        return None if flops_per_device is None else self.replicas * flops_per_device

    def scope(self) -> AbstractContextManager[None]:
        return self._strategy.scope()

    def executor(self, task: Task, *, state: State | None = None) -> TensorFlowExecutor:
        return TensorFlowExecutor(
            task,
            self._strategy,
            state=state,
            steps_per_call=self._config.train.steps_per_execution,
            deterministic=self._deterministic,
        )

    def run(self, function: Function, arrays: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Executes a function in each replica, and returns the results of the first."""

        @tf.function(autograph=False)
        def on_device(inputs: dict[str, tf.Tensor]) -> list[tf.Tensor]:
            return self._strategy.run(function, (inputs,))

        inputs = {name: tf.constant(array) for name, array in arrays.items()}
        try:
            results = on_device(inputs)
            return [self._strategy.experimental_local_results(value)[0].numpy() for value in results]
        except tf.errors.OpError as error:
            raise Rejected(error.message) from error
