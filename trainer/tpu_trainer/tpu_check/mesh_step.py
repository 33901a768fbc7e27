"""The training step of `fit --strategy pjrt` for a mesh of a topology's devices, without data and without a TPU."""

from __future__ import annotations

from dataclasses import replace

import tensorflow as tf

from tpu_trainer.config import FitConfig
from tpu_trainer.devices.devices import Target
from tpu_trainer.devices.executor import check_batch_size
from tpu_trainer.devices.pjrt.executor import train_step
from tpu_trainer.devices.pjrt.lowering_cache import LoweringCache
from tpu_trainer.devices.pjrt.mesh import rows_placement
from tpu_trainer.devices.pjrt.sharding import bytes_per_device, place_variables, whole
from tpu_trainer.devices.pjrt.stablehlo import Program
from tpu_trainer.devices.pjrt.variable_names import VariableNames
from tpu_trainer.network.division import Division
from tpu_trainer.network.initial_values import InitialValues
from tpu_trainer.step.task import Task
from tpu_trainer.support.chips import Topology
from tpu_trainer.tpu_check.compiler import DoesNotCompile, MeshModule
from tpu_trainer.tpu_check.step import Rows, Specs, row_flops
from tpu_trainer.training.build import build_task


class MeshStep:
    """The training task of a config, and its step as a program for a given number of rows."""

    def __init__(self, *, config: FitConfig, rows: Rows, topology: Topology, cache: LoweringCache) -> None:
        """
        Args:
            config: The configuration of `fit`. Its batch size is ignored.
            rows: The properties of the data.
            topology: The devices.
            cache: Of lowered programs; it can be that of `fit`.

        Raises:
            UsageError: If the devices cannot divide the model so.
        """
        self.mesh = config.mesh.without_processes().on(
            topology.replicas, f"{topology.name} has {topology.replicas}"
        )
        """The mesh, with the size of each axis."""
        # The whole batch: the compiler estimates loops only of constant length.
        self._config = config = replace(config, train=replace(config.train, batch_ramp=0))
        self._rows = rows
        self._cache = cache
        self.task: Task = build_task(
            config,
            vocabulary=rows.vocabulary,
            max_length=rows.max_length,
            target=Target(
                kernel_generation=topology.chip.name,
                splash=True,
                division=Division(**self.mesh.sizes),
            ),
            initial=InitialValues(postpone=True),
            first_rows=rows.first_rows,
        )
        """The task. Its weights have no values."""
        self._names = VariableNames(self.task.state())
        shapes = self._names.shapes()
        self._placements = place_variables(shapes, self.mesh)
        self.state_bytes = bytes_per_device(shapes, self._placements, self.mesh.sizes)
        """Bytes of weights and optimizer on a device."""

    def group_rows(self, batch_size: int) -> int:
        """Returns the rows of a batch for each group of devices; raises UsageError if they cannot be equal."""
        accumulation = self._config.train.accumulation
        groups = self.mesh.row_groups
        check_batch_size(batch_size, groups, "train.batch_size", accumulation=accumulation)
        return batch_size // groups

    def program(self, group_rows: int) -> MeshProgram:
        """Returns the step with `group_rows` rows for each group of devices that divides the rows."""
        return MeshProgram(self, self._rows.specs(group_rows * self.mesh.row_groups))

    def model_flops(self, group_rows: int) -> float:
        """Returns the model FLOPs of a step, divided by the devices."""
        rows = group_rows * self.mesh.row_groups
        return rows * row_flops(self.task, self._rows.max_length) / self.mesh.devices

    def lower(self, program: Program, specs: Specs) -> MeshModule:
        """Lowers a program of `specs`, or reads it from the cache."""
        variables = [
            self._placements.get(self._names.name(variable), whole(len(variable.shape)))
            for variable in program.captured
        ]
        batch = [rows_placement(spec.shape.rank) for spec in specs.values()]
        return MeshModule(lowered=self._cache.lower(program), placements=(*batch, *variables), mesh=self.mesh)

    def trace(self, specs: Specs) -> Program:
        """Traces the step as `fit` does."""
        return Program(train_step(self.task), specs)


class MeshProgram:
    """A step for one batch shape; has the methods of rules.TraceableStep."""

    def __init__(self, step: MeshStep, specs: Specs) -> None:
        self.specs = specs
        self._step = step
        self._program: Program | None = None

    def trace(self) -> tf.Graph:
        """Traces the step and returns its graph. Exceptions of the step propagate."""
        if self._program is None:
            self._program = self._step.trace(self.specs)
        return self._program.graph

    def lower(self) -> MeshModule:
        """Lowers the step.

        Raises:
            DoesNotCompile: If XLA rejects it.
        """
        self.trace()
        try:
            return self._step.lower(self._program, self.specs)
        except (tf.errors.OpError, ValueError, TypeError) as error:
            raise DoesNotCompile(str(error)) from error
