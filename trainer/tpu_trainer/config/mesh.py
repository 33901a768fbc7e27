"""The mesh of devices of --strategy pjrt."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from tpu_trainer.config.ranges import AT_LEAST_1, NOT_NEGATIVE, check_ranges, require
from tpu_trainer.support.errors import UsageError

DATA, EXPERT, SEQUENCE, MODEL = AXES = ("data", "expert", "sequence", "model")
"""The mesh's axes."""
ROWS = (DATA, EXPERT)
"""The axes that divide the rows of a batch."""
SHARDS = (DATA, SEQUENCE, EXPERT)
"""The axes that divide the tokens of a batch, and with fsdp the weights."""
Axis = Literal["data", "expert", "sequence", "model"]


@dataclass(frozen=True)
class MeshConfig:
    """--strategy pjrt: how the devices divide rows, weights and optimizer (docs/sharding.md)."""

    data: int | None = None
    """Groups of devices that divide the rows of a batch. Default: all devices, divided by the other axes."""
    expert: int = 1
    """Groups into which each of these is divided, by rows and, in a mixture of experts, by experts: each token is sent
    to the devices of its experts."""
    sequence: int = 1
    """Groups into which each of these is divided, by the tokens of rows (context parallelism): they gather keys and
    values. For long rows."""
    model: int = 1
    """Devices in a group, which divide attention heads, MLPs and the vocabulary (tensor parallelism). The product of
    the four is at most the number of devices."""
    fsdp: bool | Literal["zero", "keep"] = False
    """false: each group has a copy of weights and optimizer. true: the groups divide them, and gather a layer's weights
    in the forward and in the backward pass (ZeRO-3). keep: the same, but they gather once, and keep what they gathered
    until the backward pass. zero: the groups divide only the optimizer and the running mean of the weights (ZeRO-1)."""
    rules: dict[str, list[Axis | None]] = field(default_factory=dict)
    """Exceptions to how variables are divided: a regular expression for names in checkpoints → for each dimension,
    data, expert, sequence, model or null. The first match counts, for the weight and its part of the optimizer."""
    coordinator_address: str | None = None
    """HOST:PORT on which process 0 listens, if several processes train together, usually one on each host. Default:
    JAX_COORDINATOR_ADDRESS; else Cloud TPU, GKE, Slurm or Open MPI determine it and the next two."""
    num_processes: int | None = None
    """Processes that train together; 1: this process trains alone. Default: JAX_NUM_PROCESSES."""
    process_id: int | None = None
    """Number of this process, from 0. Process 0 writes the run's folder. Default: JAX_PROCESS_ID."""

    def without_processes(self) -> MeshConfig:
        """Returns the options that are the same in all processes."""
        return replace(self, coordinator_address=None, num_processes=None, process_id=None)

    def on(self, devices: int, description: str, *, all_used: bool = False) -> MeshConfig:
        """Returns the mesh with the size of each axis.

        Args:
            devices: The number of devices.
            description: A sentence with this number, for messages.
            all_used: Whether the mesh must have all of them.

        Raises:
            UsageError: If there are too few.
        """
        mesh = replace(self, data=self.data or max(1, devices // (self.expert * self.sequence * self.model)))
        if mesh.devices > devices or (all_used and mesh.devices < devices):
            product = " times ".join(f"--mesh.{axis} {size}" for axis, size in shown(mesh.sizes).items())
            raise UsageError(f"{product} are {mesh.devices} devices, but {description}; change the mesh")
        return mesh

    @property
    def sizes(self) -> dict[str, int]:
        """The axes and their sizes; `data` must be set."""
        return {DATA: self.data or 1, EXPERT: self.expert, SEQUENCE: self.sequence, MODEL: self.model}

    @property
    def devices(self) -> int:
        """The number of devices in use."""
        return math.prod(self.sizes.values())

    @property
    def row_groups(self) -> int:
        """Groups of devices that divide the rows."""
        return math.prod(self.sizes[axis] for axis in ROWS)

    def describe(self) -> str:
        """Describes the sizes of the axes that are `shown`."""
        return ", ".join(f"{axis} {size}" for axis, size in shown(self.sizes).items())

    def __post_init__(self) -> None:
        check_ranges(
            self,
            "mesh",
            data=AT_LEAST_1,
            expert=AT_LEAST_1,
            sequence=AT_LEAST_1,
            model=AT_LEAST_1,
            num_processes=AT_LEAST_1,
            process_id=NOT_NEGATIVE,
        )
        for pattern, axes in self.rules.items():
            try:
                re.compile(pattern)
            except re.error as error:
                raise UsageError(f"--mesh.rules: {pattern!r} is not a regular expression: {error}") from None
            used = [axis for axis in axes if axis is not None]
            rule = "an axis can divide only one dimension of a variable"
            require(len(set(used)) == len(used), "mesh.rules", {pattern: axes}, rule)


def shown(sizes: Mapping[str, int]) -> dict[str, int]:
    """Returns the sizes of the axes that people look for: `data` and `model`, and others that divide something."""
    return {axis: sizes[axis] for axis in AXES if sizes[axis] > 1 or axis in (DATA, MODEL)}


def check_mesh(mesh: MeshConfig, strategy: str) -> None:
    """Raises UsageError if a mesh is set for another strategy than pjrt."""
    rule = "only pjrt has a mesh; remove the options --mesh.…"
    require(strategy == "pjrt" or mesh == MeshConfig(), "strategy", strategy, rule)
