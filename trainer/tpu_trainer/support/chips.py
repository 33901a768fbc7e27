"""Google's published figures for each TPU generation."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from tpu_trainer.support.errors import UsageError


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
    ici_bandwidth: float
    """Bytes/s that a chip sends over all links between chips; it receives as many at the same time."""
    kinds: tuple[str, ...]
    """JAX's names of its devices."""
    source: str
    """URL of the figures."""
    ici_source: str = ""
    """URL of `ici_bandwidth`, if it is another one."""
    options: tuple[tuple[str, str], ...] = ()
    """Options that JAX's topology description needs besides the name."""
    compiler_options: tuple[tuple[str, int], ...] = ()
    """Options of the compiler for programs that a mesh divides."""


_DOCS = "https://cloud.google.com/tpu/docs/"
# Jouppi et al., "TPU v4" (2023), table 4: v3 has 4 links of 70 GB/s, v4 has 6 of 50 GB/s.
_PAPER = "https://arxiv.org/abs/2304.01433"
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
            ici_bandwidth=4 * 70e9,
            kinds=("TPU v3",),
            source=f"{_DOCS}v3",
            ici_source=_PAPER,
        ),
        Chip(
            name="v4",
            peak_flops=275e12,
            hbm_bytes=32 * 2**30,
            hbm_bandwidth=1200e9,
            devices=1,
            dimensions=3,
            ici_bandwidth=6 * 50e9,
            kinds=("TPU v4",),
            source=f"{_DOCS}v4",
            ici_source=_PAPER,
            options=(("chip_config_name", "megacore"),),
        ),
        Chip(
            name="v5e",
            peak_flops=197e12,
            hbm_bytes=16 * 2**30,
            hbm_bandwidth=819e9,
            devices=1,
            dimensions=2,
            ici_bandwidth=400e9 / 2,
            kinds=("TPU v5 lite", "TPU v5e"),
            source=f"{_DOCS}v5e",
        ),
        Chip(
            name="v5p",
            peak_flops=459e12,
            hbm_bytes=95 * 2**30,
            hbm_bandwidth=2765e9,
            devices=1,
            dimensions=3,
            ici_bandwidth=1200e9 / 2,
            kinds=("TPU v5", "TPU v5p"),
            source=f"{_DOCS}v5p",
        ),
        Chip(
            name="v6e",
            peak_flops=918e12,
            hbm_bytes=32 * 2**30,
            hbm_bandwidth=1638e9,
            devices=1,
            dimensions=2,
            ici_bandwidth=800e9 / 2,
            kinds=("TPU v6 lite", "TPU v6e"),
            source=f"{_DOCS}v6e",
        ),
        Chip(
            name="tpu7x",
            peak_flops=2307e12,
            hbm_bytes=192 * 2**30,
            hbm_bandwidth=7380e9,
            devices=2,
            dimensions=3,
            ici_bandwidth=1200e9 / 2,
            kinds=("TPU7x",),
            source=f"{_DOCS}tpu7x",
            # No gathers and reduce-scatters as rings of permutations that overlap with products: on 8 devices, these
            # send 9/7 as much, and products in parts access more memory (docs/sharding.md).
            compiler_options=(("xla_jf_spmd_threshold_for_windowed_einsum_mib", 1_000_000),),
        ),
    )
}

KINDS = {kind: chip.name for chip in CHIPS.values() for kind in chip.kinds}
"""JAX's name of a device → generation."""

GENERATIONS = ("v2", *(name for name in CHIPS if name != "tpu7x"))
"""Generations that TensorFlow supports. compile-check has no figures for v2."""


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
    sides: tuple[int, ...]

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
        return cls(name=name, chip=chip, sides=tuple(sides))

    @property
    def replicas(self) -> int:
        """Number of replicas: one per device."""
        return math.prod(self.sides) * self.chip.devices

    @property
    def ici_bandwidth(self) -> float:
        """Bytes/s that each chip can send: a chip at a corner has the fewest links. 0 if there is a single chip."""
        # Source of the rings: MaxText's accelerator_to_spec_map.py. In three dimensions, all sides are rings, or none.
        if self.chip.dimensions == 3:
            rings = [all(side % 4 == 0 for side in self.sides)] * 3
        else:
            rings = [side % 16 == 0 for side in self.sides]
        links = sum(2 if ring else side > 1 for side, ring in zip(self.sides, rings, strict=True))
        return self.chip.ici_bandwidth * links / (2 * self.chip.dimensions)
