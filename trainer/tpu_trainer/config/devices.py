"""The devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tpu_trainer.config.ranges import POSITIVE, check_ranges, require

StrategyName = Literal["auto", "cpu", "gpu", "tpu"]
TrainingStrategyName = Literal["auto", "cpu", "gpu", "tpu", "pjrt"]


@dataclass(frozen=True)
class TpuConfig:
    """The TPU to use."""

    name: str = "local"
    """local: the TPU of this TPU VM; otherwise the name of a TPU elsewhere."""
    zone: str | None = None
    """The Google Cloud zone of a named TPU."""
    project: str | None = None
    """The Google Cloud project of a named TPU."""
    accelerator_type: str | None = None
    """Its generation and size, such as v5litepod-8, for MFU and the attention kernel; default: from
    TPU_ACCELERATOR_TYPE or the machine's metadata server."""
    connect_minutes: float = 10.0
    """Minutes to wait for all hosts of a TPU elsewhere to serve their chips; then the run ends with an error."""

    def __post_init__(self) -> None:
        for field_name in ("zone", "project"):
            value = getattr(self, field_name)
            require(
                value is None or self.name != "local",
                f"tpu.{field_name}",
                value,
                "set the TPU's name with --tpu.name",
            )
        check_ranges(self, "tpu", connect_minutes=POSITIVE)
