"""What accelerators cost: one table, with its date, that `--prices` overrides."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tokenmill_reader.console.spelling import suggestion
from tpu_trainer.devices.peak_flops import gpu_peak_flops
from tpu_trainer.support.chips import CHIPS, Topology
from tpu_trainer.support.errors import UsageError

DATE = "November 2025"
SOURCE = "https://cloud.google.com/tpu/pricing, https://cloud.google.com/products/compute/pricing/accelerator-optimized"
# All but TPU7x's are also in SkyPilot's catalog, which is made from Google's billing API: catalogs/v8/gcp/vms.csv of
# skypilot-org/skypilot-catalog at commit 006059e. It has slices, machines without their GPUs, and GPUs; not TPU7x.
PRICES = {
    "v3": 2.00,  # v3-8, 4 chips: 8.00 in us-central1 and us-east1
    "v4": 3.22,  # v4-8, 4 chips: 12.88 in us-central2
    "v5e": 1.20,  # v5litepod-1: 1.20 in us-central1 and elsewhere, but 1.416 in us-south1
    "v5p": 4.20,  # v5p-12288, 6144 chips: 25804.80 in us-east5
    "v6e": 2.70,  # v6e-1: 2.70 in us-central1 and elsewhere
    "tpu7x": 12.00,
    "A100": 3.67,  # a2-highgpu-8g: (5.91582 + 23.47126) / 8 in us-central1
    "H100": 11.06,  # a3-highgpu-8g: 9.46006 / 8 + 9.79655 in us-east4, and 0.08 for its local disks
}
"""Dollars per hour of a TPU chip, or a GPU with its share of the machine: on demand, the USA's cheapest region."""

UNCONFIRMED = frozenset(("tpu7x",))
"""Prices that no second public source confirms."""

_GPUS = {"A100": "A100", "H100": "H100 SXM"}
"""The name in this table → that in the table of peaks."""


@dataclass(frozen=True, kw_only=True)
class Accelerator:
    """Chips of one kind to rent."""

    kind: str
    count: int
    peak_flops: float
    """Operations per second of one."""
    dollars: float
    """Dollars per hour of one."""


def accelerators(
    topology: str | None, prices: Mapping[str, float], *, bfloat16: bool
) -> dict[str, Accelerator]:
    """Returns name → what to rent: one of each kind in the table, or the kind and number that `topology` names.

    Args:
        topology: Such as v5e:2x4 or H100:8; None: any.
        prices: Overrides the table, and adds no kind.
        bfloat16: Whether products are in bfloat16. GPUs compute others in TensorFloat-32, TPUs in bfloat16.

    Raises:
        UsageError: If a kind is unknown or a price is not positive.
    """
    for kind, price in prices.items():
        if kind not in PRICES:
            meant = suggestion(kind, list(PRICES))
            raise UsageError(f"--prices names {kind!r}{meant}: give kinds of {', '.join(PRICES)}")
        if not 0 < price < math.inf:
            raise UsageError(f"--prices has {price} for {kind}: give dollars per hour above 0")
    if topology is None:
        chosen = dict.fromkeys(PRICES, 1)
    else:
        kind, _, count = topology.partition(":")
        if kind in _GPUS:
            if not count.isdecimal() or int(count) < 1:
                raise UsageError(f"--topology is {topology!r}: give the number of GPUs, such as {kind}:8")
            chosen = {kind: int(count)}
        elif kind not in CHIPS:
            meant = suggestion(kind, list(PRICES))
            raise UsageError(
                f"--topology is {topology!r}: the kind must be one of {', '.join(PRICES)}{meant}"
            )
        else:
            parsed = Topology.parse(topology)
            chosen = {parsed.chip.name: parsed.replicas // parsed.chip.devices}
    return {
        (kind if topology is None else topology): Accelerator(
            kind=kind, count=count, peak_flops=_peak(kind, bfloat16), dollars=prices.get(kind, PRICES[kind])
        )
        for kind, count in chosen.items()
    }


def _peak(kind: str, bfloat16: bool) -> float:
    return gpu_peak_flops(_GPUS[kind], bfloat16=bfloat16) if kind in _GPUS else CHIPS[kind].peak_flops
