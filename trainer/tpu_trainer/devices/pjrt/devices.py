"""The devices of --strategy pjrt, on one or several hosts."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cached_property

import numpy as np
import tensorflow as tf

from tpu_trainer.config import FitConfig
from tpu_trainer.devices.devices import Devices, Target
from tpu_trainer.devices.peak_flops import gpu_peak_flops, tpu_peak_flops
from tpu_trainer.devices.pjrt.executor import PjrtExecutor
from tpu_trainer.devices.pjrt.lowering import Lowering
from tpu_trainer.devices.pjrt.lowering_cache import LoweringCache, cache_folder
from tpu_trainer.devices.pjrt.mesh import DeviceMesh
from tpu_trainer.devices.pjrt.peers import Peers
from tpu_trainer.devices.pjrt.sharding import whole
from tpu_trainer.devices.pjrt.stablehlo import Program
from tpu_trainer.devices.tensorflow.strategy import build_strategy
from tpu_trainer.network.division import Division
from tpu_trainer.network.initial_values import InitialValues
from tpu_trainer.network.kernel_check import Function, Rejected
from tpu_trainer.runs.checkpoint import State
from tpu_trainer.step.task import Task
from tpu_trainer.support.chips import KINDS
from tpu_trainer.support.errors import UsageError


class PjrtDevices(Devices):
    """A mesh divides the rows, and may divide weights and optimizer."""

    def __init__(self, config: FitConfig, peers: Peers) -> None:
        """Raises UsageError if JAX is not installed, or its devices do not form the mesh."""
        self._config = config
        self._peers = peers
        self._mesh = DeviceMesh(config.mesh)
        build_strategy("cpu")  # TensorFlow only traces
        if config.train.deterministic:
            tf.config.experimental.enable_op_determinism()
            tf.random.set_seed(
                config.seed
            )  # to lower a program, TensorFlow draws a number, which nothing uses
        self._lowering = Lowering(LoweringCache(cache_folder("pjrt")), self._mesh, peers)
        self.replicas = self._mesh.config.row_groups
        self.initial = InitialValues(postpone=True)  # a mesh may have more memory than the host
        self.is_cpu = self._mesh.platform == "cpu"

    @cached_property
    def target(self) -> Target:
        mesh, kernel = self._mesh, self._config.train.attention_kernel
        if kernel and mesh.platform == "tpu" and mesh.kind not in KINDS:
            raise UsageError(
                f"--train.attention_kernel: for this TPU, {mesh.kind!r}, there is no kernel; use "
                "--train.recompute attention instead"
            )
        return Target(
            kernel_generation=KINDS.get(mesh.kind) if kernel else None,
            splash=kernel and mesh.platform == "tpu",
            cudnn=kernel and mesh.platform == "gpu",
            division=Division(**mesh.config.sizes),
        )

    def peak_flops(self, *, bfloat16: bool) -> float | None:
        flops_per_device = None
        if self._mesh.platform == "gpu":
            flops_per_device = gpu_peak_flops(self._mesh.kind, bfloat16=bfloat16)
        elif self._mesh.platform == "tpu":
            flops_per_device = tpu_peak_flops(KINDS.get(self._mesh.kind, ""))
        return None if flops_per_device is None else self._mesh.devices * flops_per_device

    def scope(self) -> AbstractContextManager[None]:
        return nullcontext()

    def executor(self, task: Task, *, state: State | None = None) -> PjrtExecutor:
        return PjrtExecutor(
            task,
            self._mesh,
            lowering=self._lowering,
            peers=self._peers,
            state=state,
            initial=self.initial,
            deterministic=self._config.train.deterministic,
        )

    def run(self, function: Function, arrays: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Executes a function on all devices together."""
        specs = {name: tf.TensorSpec(array.shape, array.dtype) for name, array in arrays.items()}
        placements = [whole(array.ndim) for array in arrays.values()]
        lowered = self._lowering.lower("check the attention kernel", Program(function, specs))
        try:
            run = self._mesh.compile(lowered, placements)
            return list(map(self._mesh.get, run(*map(self._mesh.put, arrays.values(), placements))))
        except self._mesh.error as error:
            raise Rejected(str(error)) from error
