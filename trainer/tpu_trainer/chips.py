"""Google's published figures for each TPU generation."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tpu_trainer.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Chip:
    """One TPU generation. The figures are per chip; each device holds one replica."""

    name: str
    peak_flops: float
    """FLOP/s of bfloat16 matrix products. float32 products run on the same unit in bfloat16 passes: one by default."""
    hbm_bytes: float
    hbm_bandwidth: float
    """Bytes/s."""
    devices: int
    """Devices per chip. The two cores of a chip are one device on v4 and v5p, and two on v3."""
    dimensions: int
    """Dimensions of the torus of chips."""
    source: str
    """URL of the figures."""
    options: tuple[tuple[str, str], ...] = ()
    """Options that JAX's topology description needs besides the name."""


_DOCS = "https://cloud.google.com/tpu/docs/"
CHIPS = {
    chip.name: chip
    for chip in (
        Chip(
            name="v3",
            peak_flops=123e12,
            hbm_bytes=32 * 2**30,
            hbm_bandwidth=900e9,
            devices=2,
            dimensions=2,
            source=f"{_DOCS}v3",
        ),
        Chip(
            name="v4",
            peak_flops=275e12,
            hbm_bytes=32 * 2**30,
            hbm_bandwidth=1200e9,
            devices=1,
            dimensions=3,
            source=f"{_DOCS}v4",
            options=(("chip_config_name", "megacore"),),
        ),
        Chip(
            name="v5e",
            peak_flops=197e12,
            hbm_bytes=16 * 2**30,
            hbm_bandwidth=819e9,
            devices=1,
            dimensions=2,
            source=f"{_DOCS}v5e",
        ),
        Chip(
            name="v5p",
            peak_flops=459e12,
            hbm_bytes=95 * 2**30,
            hbm_bandwidth=2765e9,
            devices=1,
            dimensions=3,
            source=f"{_DOCS}v5p",
        ),
        Chip(
            name="v6e",
            peak_flops=918e12,
            hbm_bytes=32 * 2**30,
            hbm_bandwidth=1638e9,
            devices=1,
            dimensions=2,
            source=f"{_DOCS}v6e",
        ),
    )
}

GENERATIONS = ("v2", *CHIPS)
"""Generations that training supports. compile-check has no figures for v2."""


def generation(accelerator_type: str) -> str | None:
    """Returns the generation of an accelerator type, such as v5e for v5litepod-8; None if it is not in GENERATIONS."""
    name = accelerator_type.partition("-")[0]
    name = {"v5litepod": "v5e"}.get(name, name)
    return name if name in GENERATIONS else None


@dataclass(frozen=True, kw_only=True)
class Topology:
    """A grid of chips of one generation, such as v5e:2x4: eight chips."""

    name: str
    chip: Chip
    chips: int

    @classmethod
    def parse(cls, name: str) -> Topology:
        """Parses a topology's name.

        Raises:
            UsageError: If the name does not describe a topology.
        """
        match = re.fullmatch(r"(\w+):(\d+(?:x\d+)*)", name)
        if match is None:
            raise UsageError(
                f"--topology is {name!r}: give a generation and the number of chips along each side, such as v5e:2x4"
            )
        chip = CHIPS.get(match[1])
        if chip is None:
            raise UsageError(f"--topology is {name!r}: the generation must be one of {', '.join(CHIPS)}")
        sides = [int(side) for side in match[2].split("x")]
        if len(sides) != chip.dimensions or 0 in sides:
            example = "x".join(["2"] * 2 + ["1"] * (chip.dimensions - 2))
            raise UsageError(
                f"--topology is {name!r}: {chip.name} needs {chip.dimensions} sides of at least 1, such as "
                f"{chip.name}:{example}"
            )
        chips = 1
        for side in sides:
            chips *= side
        return cls(name=name, chip=chip, chips=chips)

    @property
    def replicas(self) -> int:
        """Number of replicas: one per device."""
        return self.chips * self.chip.devices
