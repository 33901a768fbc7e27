"""The meshes and batches that devices can have, and bounds of their memory and speed that need no compiler."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, get_args, get_type_hints

from tpu_trainer.config import CompileCheckConfig, MeshConfig, Recompute
from tpu_trainer.config.mesh import DATA, EXPERT, MODEL, SEQUENCE, shown
from tpu_trainer.devices.pjrt.sharding import bytes_per_device, place_variables
from tpu_trainer.network.architecture import Architecture
from tpu_trainer.network.division import Division
from tpu_trainer.support.chips import Topology
from tpu_trainer.support.errors import UsageError

Fsdp = bool | str
_LARGEST_ROWS = 1 << 16
_START_ROWS = 8  # rows of a micro-batch per device at which a search with a free batch starts
_BFLOAT16 = 2  # bytes
# XLA simplifies away a few of the operations that the model's graph has.
_LEAST_SHARE_OF_MODEL_FLOPS = 0.95


@dataclass(frozen=True, kw_only=True)
class MeshPlan:
    """The division of the model and the rows over the devices, without the size of the micro-batches."""

    model: int
    data: int
    expert: int = 1
    sequence: int = 1
    fsdp: Fsdp
    recompute: Recompute

    def __str__(self) -> str:
        sharded = {True: ", fsdp", False: ""}.get(self.fsdp, f", {self.fsdp}")
        recomputed = "" if self.recompute == "nothing" else f", recompute {self.recompute}"
        sizes = " × ".join(f"{axis} {size}" for axis, size in self._sizes.items())
        return f"{sizes}{sharded}{recomputed}"

    @property
    def row_groups(self) -> int:
        """Groups of devices that divide the rows."""
        return self.data * self.expert

    @property
    def axes(self) -> dict[str, Any]:
        """The options of the mesh."""
        return {**self._sizes, "fsdp": self.fsdp}

    @property
    def _sizes(self) -> dict[str, int]:
        """The sizes of the axes, those of 1 only if they are searched."""
        return shown({DATA: self.data, EXPERT: self.expert, SEQUENCE: self.sequence, MODEL: self.model})


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A plan and its micro-batches."""

    plan: MeshPlan
    rows: int
    """Rows of a micro-batch on each group of devices."""
    accumulation: int

    def __str__(self) -> str:
        return f"{self.plan}, {self.accumulation} micro-batch(es) of {self.rows} rows"

    @property
    def batch_size(self) -> int:
        """Rows of a step."""
        return self.plan.row_groups * self.rows * self.accumulation

    def configure(self, config: CompileCheckConfig) -> CompileCheckConfig:
        """Returns the configuration with the candidate's options."""
        mesh = replace(config.mesh, **self.plan.axes)
        train = replace(
            config.train,
            batch_size=self.batch_size,
            accumulation=self.accumulation,
            batch_ramp=0,
            recompute=self.plan.recompute,
        )
        return replace(config, mesh=mesh, train=train)

    def options(self) -> dict[str, dict[str, Any]]:
        """Returns the candidate's part of a configuration of `fit`."""
        plan = self.plan
        return {
            "mesh": plan.axes,
            "train": {
                "batch_size": self.batch_size,
                "accumulation": self.accumulation,
                "recompute": plan.recompute,
            },
        }


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """The sizes of the model, not of a device, on which the bounds depend."""

    shapes: Mapping[str, tuple[int, ...]]
    """Name in checkpoints → shape of the variable; all are float32."""
    architecture: Architecture
    max_length: int
    row_flops: float
    """Model FLOPs to train on a row."""
    activation_bytes: int
    """Bytes of a number in activations."""


@dataclass(frozen=True, kw_only=True)
class PlanBytes:
    """Bytes on a device."""

    state: int
    """Weights, optimizer and running mean of the weights."""
    gradient: int
    """The gradient in bfloat16, before it is summed over the groups."""


def fsdp_values() -> tuple[Fsdp, ...]:
    """Returns the values of the option mesh.fsdp, false first."""
    literals = [value for part in get_args(get_type_hints(MeshConfig)["fsdp"]) for value in get_args(part)]
    return (False, *literals, True)


def plans(
    config: CompileCheckConfig, facts: ModelFacts, topology: Topology
) -> tuple[dict[MeshPlan, PlanBytes], dict[MeshPlan, str]]:
    """Returns the plans for all devices of the topology, and why others are impossible: by the rules or by memory."""
    available = topology.chip.hbm_bytes / topology.chip.devices
    expert, sequence = config.mesh.expert, config.mesh.sequence
    if topology.replicas % (expert * sequence):
        raise UsageError(
            f"--mesh.expert {expert} times --mesh.sequence {sequence} must divide the {topology.replicas} devices of "
            f"{topology.name}; change the mesh or the topology"
        )
    policies = get_args(Recompute) if config.find_recompute else (config.train.recompute,)
    possible, refused = {}, {}
    for model in range(1, topology.replicas + 1):
        data, remainder = divmod(topology.replicas, model * expert * sequence)
        if remainder:
            continue
        for fsdp in fsdp_values() if data * expert * sequence > 1 else (False,):
            mesh = replace(config.mesh.without_processes(), data=data, model=model, fsdp=fsdp)
            size = reason = None
            try:
                Division(**mesh.sizes).check(facts.architecture, facts.max_length)
                size = _plan_bytes(mesh, facts)
            except UsageError as error:
                reason = str(error).removeprefix("--")
            else:
                if size.state > available:
                    reason = f"weights and optimizer need {(size.state - available) / 1e9:,.1f} GB too much"
            for recompute in policies:
                plan = MeshPlan(
                    data=data, expert=expert, sequence=sequence, model=model, fsdp=fsdp, recompute=recompute
                )
                if reason is None:
                    possible[plan] = size
                else:
                    refused[plan] = reason
    return possible, refused


def micro_batches(plan: MeshPlan, config: CompileCheckConfig) -> list[Candidate]:
    """Returns a plan's candidates, in ascending order of their rows.

    They have the configuration's batch, in any number of micro-batches; with `find_batch_size`, a power of two of rows
    per group and micro-batch, in the configuration's number of micro-batches.
    """
    if config.find_batch_size:
        accumulation = config.train.accumulation
        return [
            Candidate(plan=plan, rows=1 << power, accumulation=accumulation)
            for power in range(_LARGEST_ROWS.bit_length())
        ]
    rows, remainder = divmod(config.train.batch_size, plan.row_groups)
    if remainder:
        return []
    return [
        Candidate(plan=plan, rows=rows // accumulation, accumulation=accumulation)
        for accumulation in range(rows, 0, -1)
        if rows % accumulation == 0
    ]


def start(candidates: list[Candidate], config: CompileCheckConfig) -> int:
    """Returns the index of the candidate to try first: the configuration's accumulation, or 8 rows per device."""

    def distance(candidate: Candidate) -> float:
        if config.find_batch_size:
            return abs(math.log(candidate.rows / (_START_ROWS * candidate.plan.model)))
        return abs(math.log(candidate.accumulation / config.train.accumulation))

    return min(range(len(candidates)), key=lambda index: distance(candidates[index]))


def _plan_bytes(mesh: MeshConfig, facts: ModelFacts) -> PlanBytes:
    sizes = mesh.sizes
    whole = place_variables(facts.shapes, replace(mesh, fsdp=False))
    weights = {name: placement for name, placement in whole.items() if name.startswith("network/")}
    placements = place_variables(facts.shapes, mesh)
    return PlanBytes(
        state=bytes_per_device(facts.shapes, placements, sizes),
        gradient=bytes_per_device(facts.shapes, weights, sizes, _BFLOAT16),
    )


def least_seconds(
    candidate: Candidate, size: PlanBytes, facts: ModelFacts, topology: Topology
) -> dict[str, float]:
    """Returns lower bounds of a step's time by resource.

    Each device computes its share of the model's products, reads and writes its part of weights and optimizer, takes
    part in a sum of the gradient in bfloat16 (as all-reduce, or as reduce-scatter and all-gather), and with a `model`
    axis in four sums of the activations of each layer: of attention and of the MLP, forward and backward. If these are
    parallel, their sums can be one.
    """
    plan, chip = candidate.plan, topology.chip
    flops = facts.row_flops * candidate.batch_size / topology.replicas
    # Experts' gradients, which their own axis divides, are summed over fewer devices.
    groups = plan.data * plan.sequence
    sent = 2 * size.gradient * (groups - 1) / groups
    if plan.model > 1:
        rows = candidate.batch_size / (plan.row_groups * plan.sequence)
        activations = rows * facts.max_length * facts.architecture.width * facts.activation_bytes
        sums = (2 if facts.architecture.parallel else 4) * facts.architecture.layers
        sent += sums * 2 * activations * (plan.model - 1) / plan.model
    links = topology.ici_bandwidth / chip.devices
    return {
        "compute": _LEAST_SHARE_OF_MODEL_FLOPS * flops / (chip.peak_flops / chip.devices),
        "memory": 2 * size.state / (chip.hbm_bandwidth / chip.devices),
        "communication": sent / links if links else 0.0,
    }
