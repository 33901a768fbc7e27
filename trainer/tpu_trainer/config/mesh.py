"""The mesh of devices of --strategy pjrt."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from tpu_trainer.config.ranges import AT_LEAST_1, check_ranges, require
from tpu_trainer.errors import UsageError

DATA, MODEL = "data", "model"
"""The mesh's axes."""
Axis = Literal["data", "model"]


@dataclass(frozen=True)
class MeshConfig:
    """--strategy pjrt: how the devices divide rows, weights and optimizer (docs/sharding.md)."""

    data: int | None = None
    """Groups of devices that divide the rows of a batch. Default: all devices, divided by mesh.model."""
    model: int = 1
    """Devices in a group, which divide attention heads, MLPs and the vocabulary (tensor parallelism). The product of
    data and model is at most the number of devices."""
    fsdp: bool | Literal["zero"] = False
    """false: each group has a copy of weights and optimizer. true: the groups divide them, and gather a layer's weights
    when it is computed (ZeRO-3). zero: the groups divide only the optimizer and the running mean of the weights
    (ZeRO-1)."""
    rules: dict[str, list[Axis | None]] = field(default_factory=dict)
    """Exceptions to how variables are divided: a regular expression for names in checkpoints → for each dimension,
    data, model or null. The first match counts, for the weight and its part of the optimizer."""

    def __post_init__(self) -> None:
        check_ranges(self, "mesh", data=AT_LEAST_1, model=AT_LEAST_1)
        for pattern, axes in self.rules.items():
            try:
                re.compile(pattern)
            except re.error as error:
                raise UsageError(f"--mesh.rules: {pattern!r} is not a regular expression: {error}") from None
            used = [axis for axis in axes if axis is not None]
            rule = "an axis can divide only one dimension of a variable"
            require(len(set(used)) == len(used), "mesh.rules", {pattern: axes}, rule)
