"""The slices of each TPU generation: from an accelerator type to hosts, topology and the names that GKE uses.

Source of names, chips per host and topologies: https://cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus, and
the page of each generation below https://cloud.google.com/tpu/docs/ (v4, v5e, v5p, v6e, tpu7x). Of machine types,
images and disks: https://docs.cloud.google.com/compute/docs/tpus/tpu-machines, and https://docs.cloud.google.com/tpu/docs/
(tpu-os-images, setup-persistent-disk).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from tpu_trainer.support.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class _Generation:
    """How a generation's slices are named and built."""

    gke_accelerator: str
    """Value of the node label cloud.google.com/gke-tpu-accelerator."""
    per_chip: int
    """What the number in an accelerator type counts, per chip: TensorCores (2), or chips (1)."""
    max_chips: int
    """Chips of the largest slice."""
    dimensions: int
    machines: str | None = None
    """Begin of the names of Compute Engine's machine types; None: it has none for slices."""
    boot_image_family: str = "ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e"
    boot_disk_type: str = "hyperdisk-balanced"


# Accelerator types count TensorCores, except those of v5e and v6e.
_GENERATIONS = {
    "v4": _Generation(gke_accelerator="tpu-v4-podslice", per_chip=2, max_chips=4096, dimensions=3),
    "v5litepod": _Generation(gke_accelerator="tpu-v5-lite-podslice", per_chip=1, max_chips=256, dimensions=2),
    "v5p": _Generation(
        gke_accelerator="tpu-v5p-slice",
        per_chip=2,
        max_chips=6144,
        dimensions=3,
        machines="ct5p-hightpu",
        boot_disk_type="pd-balanced",
    ),
    "v6e": _Generation(
        gke_accelerator="tpu-v6e-slice", per_chip=1, max_chips=256, dimensions=2, machines="ct6e-standard"
    ),
    "tpu7x": _Generation(
        gke_accelerator="tpu7x",
        per_chip=2,
        max_chips=9216,
        dimensions=3,
        machines="tpu7x-standard",
        boot_image_family="ubuntu-accel-2404-amd64-tpu-tpu7x",
    ),
}
_FLAT = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
# Smaller than a cube of 4x4x4 chips. Larger slices are multiples of it.
_SMALL = ("2x2x1", "2x2x2", "2x2x4", "2x4x4")
_CHIPS_PER_HOST = 4


@dataclass(frozen=True, kw_only=True)
class Slice:
    """One slice: hosts whose chips are connected with each other."""

    gke_accelerator: str
    """Value of the node label cloud.google.com/gke-tpu-accelerator."""
    topology: str
    """Chips along each side, such as 2x4: the node label cloud.google.com/gke-tpu-topology."""
    hosts: int
    chips_per_host: int
    machine_type: str | None
    """Compute Engine's machine type of a host; None: it has none."""
    boot_image_family: str
    """Family of Compute Engine's images for the hosts."""
    boot_disk_type: str

    @classmethod
    def parse(cls, accelerator_type: str, topology: str | None = None) -> Slice:
        """Returns the slice of an accelerator type such as v5litepod-16.

        Args:
            accelerator_type: Generation and size, as in the Cloud TPU API.
            topology: Chips along each side; None: the one that Google's pages list for this size, of those with equal
                numbers of chips the most cubic one.

        Raises:
            UsageError: If there is no such slice.
        """
        name, _, number = accelerator_type.partition("-")
        kind = _GENERATIONS.get(name)
        if kind is None or not re.fullmatch(r"[1-9]\d{0,4}", number):
            raise UsageError(
                f"--cloud.accelerator_type is {accelerator_type!r}: must be one of {', '.join(_GENERATIONS)}, a "
                "hyphen and a size, such as v5litepod-16"
            )
        chips, remainder = divmod(int(number), kind.per_chip)
        topologies = [] if remainder or chips > kind.max_chips else _topologies(kind, chips)
        if not topologies:
            raise UsageError(
                f"--cloud.accelerator_type is {accelerator_type!r}: {name} has no slice of this size; "
                f"{_sizes(name, kind)}"
            )
        chosen_topology = topology or topologies[0]
        if chosen_topology not in topologies:
            raise UsageError(
                f"--cloud.topology is {topology!r}: {accelerator_type} has {chips} chips; its topologies are "
                f"{', '.join(topologies[:6])}"
            )
        # A slice of up to 8 chips of v5e or v6e is one host; the hosts of larger ones have 4 chips each.
        per_host = (
            chips if chips < _CHIPS_PER_HOST or (kind.dimensions == 2 and chips == 8) else _CHIPS_PER_HOST
        )
        return cls(
            gke_accelerator=kind.gke_accelerator,
            topology=chosen_topology,
            hosts=chips // per_host,
            chips_per_host=per_host,
            machine_type=None if kind.machines is None else f"{kind.machines}-{per_host}t",
            boot_image_family=kind.boot_image_family,
            boot_disk_type=kind.boot_disk_type,
        )


def _topologies(kind: _Generation, chips: int) -> list[str]:
    """Returns the topologies of `chips` chips, the default first."""
    if kind.dimensions == 2:
        return [name for name in _FLAT if _chips(name) == chips]
    if chips < 64:
        return [name for name in _SMALL if _chips(name) == chips]
    if chips % 64:
        return []
    cubes = chips // 64
    sides = [
        (a, b, cubes // (a * b))
        for a in range(1, math.isqrt(cubes) + 1)
        if cubes % a == 0
        for b in range(a, cubes + 1)
        if cubes % (a * b) == 0 and b <= cubes // (a * b)
    ]
    return ["x".join(str(4 * side) for side in each) for each in sorted(sides, key=sum)]


def _sizes(name: str, kind: _Generation) -> str:
    if kind.dimensions == 2:
        return "sizes: " + ", ".join(f"{name}-{_chips(each)}" for each in _FLAT)
    small_sizes = ", ".join(f"{name}-{kind.per_chip * _chips(each)}" for each in _SMALL)
    return (
        f"sizes: {small_sizes}, and multiples of {64 * kind.per_chip} up to {kind.max_chips * kind.per_chip}"
    )


def _chips(topology: str) -> int:
    return math.prod(map(int, topology.split("x")))
