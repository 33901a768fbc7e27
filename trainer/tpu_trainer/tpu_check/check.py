"""Checks, lowers and compiles a configuration's step, and reports its figures."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Any

from tokenmill_reader.console.elapsed import elapsed
from tpu_trainer.config import CompileCheckConfig
from tpu_trainer.devices.pjrt.lowering_cache import LoweringCache, cache_folder
from tpu_trainer.support import files
from tpu_trainer.support.chips import Topology
from tpu_trainer.support.errors import UsageError
from tpu_trainer.tpu_check.cache import Cache
from tpu_trainer.tpu_check.compiler import DoesNotCompile, Executable, OutOfMemory
from tpu_trainer.tpu_check.figures import figures
from tpu_trainer.tpu_check.interruption import ending_at_once
from tpu_trainer.tpu_check.mesh_step import MeshStep
from tpu_trainer.tpu_check.rules import Finding, check_and_lower
from tpu_trainer.tpu_check.step import (
    ReplicaStep,
    Rows,
    replica_rows,
    rows_of_dataset,
    rows_without_dataset,
)
from tpu_trainer.tpu_check.step_options import step_options

_log = logging.getLogger(__name__)


def rows_of(config: CompileCheckConfig) -> Rows:
    """Returns the properties of the data that determine the step."""
    if config.data.train:
        return rows_of_dataset(config)
    return rows_without_dataset(config, vocab_size=config.vocab_size, max_length=config.max_length)


class StepCheck:
    """The step of a configuration, which can be compiled for several numbers of rows."""

    def __init__(self, config: CompileCheckConfig, *, topology: Topology, cache: Cache) -> None:
        """
        Args:
            config: The configuration.
            topology: The devices.
            cache: Of compiled programs.

        Raises:
            UsageError: If the options are inconsistent.
        """
        self._config = config
        self._topology = topology
        self._cache = cache
        pjrt = config.strategy == "pjrt"
        if not (config.find_batch_size or pjrt):
            replica_rows(config, topology)  # the error comes before TensorFlow builds the model
        self.rows = rows_of(config)
        """The properties of the data."""
        with elapsed("compile-check: building the model"):
            if pjrt:
                lowered = LoweringCache(Path(config.cache) if config.cache else cache_folder("pjrt"))
                self.step: ReplicaStep | MeshStep = MeshStep(
                    config=config, rows=self.rows, topology=topology, cache=lowered
                )
            else:
                self.step = ReplicaStep(config=config, rows=self.rows, topology=topology)

    def configured_rows(self) -> int:
        """Returns the rows of a replica (of a group of devices of a mesh); raises UsageError if they are not equal."""
        if isinstance(self.step, MeshStep):
            return self.step.group_rows(self._config.train.batch_size)
        return replica_rows(self._config, self._topology)

    def report(self, rows: int) -> dict[str, Any]:
        """Compiles the step for a number of rows of a replica (of a group of devices) and returns its figures.

        Raises:
            UsageError: If it cannot be compiled.
        """
        config, topology, step = self._config, self._topology, self.step
        mesh, max_length = step.mesh, self.rows.max_length
        _log.info(
            f"compile-check: {config.model.type}, {rows} rows of {max_length} tokens on each of "
            f"{mesh.row_groups if mesh else topology.replicas} replica(s), {topology.name}"
        )
        result, digest, findings = self._compile(rows)
        report = figures(
            result,
            topology=topology,
            replica_rows=rows,
            max_length=max_length,
            model_flops=step.model_flops(rows) if isinstance(result, Executable) else 0.0,
            mesh=mesh,
        )
        if config.hlo is not None and isinstance(result, Executable):
            path = files.join(config.hlo, f"{digest[:16]}-{topology.name.replace(':', '-')}.hlo.txt")
            files.make_dirs(config.hlo)
            files.write_text(path, result.hlo)
            report["hlo"] = path
        batch_size = rows * report["replicas"]
        options = step_options(config, self.rows, topology=topology, batch_size=batch_size)
        return report | {
            "step": options,
            "findings": [dataclasses.asdict(finding) for finding in findings],
        }

    def _compile(self, rows: int) -> tuple[Executable | OutOfMemory, str, list[Finding]]:
        """Returns the compiler's result, the program's digest, and what the rules found in it."""
        topology, step = self._topology, self.step
        available = topology.chip.hbm_bytes / topology.chip.devices
        if isinstance(step, MeshStep) and (needed := step.state_bytes) > available:
            # To lower a large model takes minutes.
            return OutOfMemory(needed=needed, available=available, arguments=needed), "", []
        try:
            with elapsed("compile-check: lowering the step"), ending_at_once():
                module, findings = check_and_lower(step.program(rows))
            if module is None:
                raise UsageError("the step cannot be compiled for a TPU:\n" + "\n".join(map(str, findings)))
            with elapsed("compile-check: compiling the step"):
                return self._cache.compile(module, topology), module.digest, findings
        except DoesNotCompile as error:
            message = f"the step cannot be compiled for {topology.name}:\n{str(error).split(chr(10) * 2)[0]}"
            # Mosaic is the compiler of kernels; vmem is their memory.
            if "Mosaic" in message or "memory space vmem" in message:
                message += (
                    "\n--train.attention_kernel: not supported on this generation for such rows; leave it out"
                )
            raise UsageError(message) from error
