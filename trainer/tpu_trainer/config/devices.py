"""The devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

StrategyName = Literal["auto", "cpu", "gpu", "tpu"]
TrainingStrategyName = Literal["auto", "cpu", "gpu", "tpu", "pjrt"]


@dataclass(frozen=True)
class TpuConfig:
    """The TPU of this machine."""

    accelerator_type: str | None = None
    """Its generation and size, such as v5litepod-8, for MFU and the attention kernel; default: from
    TPU_ACCELERATOR_TYPE or the machine's metadata server."""
