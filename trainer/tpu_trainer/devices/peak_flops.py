"""Peak floating-point operations of devices, relative to which a run's model FLOPs utilization (MFU) is."""

from __future__ import annotations

import re

from tpu_trainer.support.chips import CHIPS

# Dense bfloat16 operations per second of a TensorFlow device.
_TPUS = {name: chip.peak_flops / chip.devices for name, chip in CHIPS.items()}
# Not in CHIPS. cloud.google.com/tpu/docs/v2: "Peak compute per chip", which is two devices.
_TPUS["v2"] = 46e12 / 2
# Dense operations per second on tensor cores: bfloat16, and TensorFloat-32, which TensorFlow uses for float32.
# From NVIDIA's data sheets, halved if they are for sparse matrices. The first matching name is used.
_GPUS = (
    (r"B200", 2250e12, 1125e12),
    (r"H200|H100.*HBM3|H100.*SXM|GH200", 989e12, 494e12),
    (r"H100", 756e12, 378e12),  # the PCIe card
    (r"A100", 312e12, 156e12),
    (r"L40S", 362e12, 183e12),
    (r"\bL4\b", 121e12, 60e12),
    (r"\bA10\b", 125e12, 62.5e12),
    (r"RTX 4090", 165e12, 82.6e12),
    (r"RTX 3090", 71e12, 35.6e12),
)


def gpu_peak_flops(name: str, *, bfloat16: bool) -> float | None:
    """Returns operations per second of the GPU called `name`; None if it is not in the table."""
    for pattern, in_bfloat16, in_tf32 in _GPUS:
        if re.search(pattern, name):
            return in_bfloat16 if bfloat16 else in_tf32
    return None


def tpu_peak_flops(generation: str) -> float | None:
    """Returns operations per second of one TensorFlow device of a TPU such as v5e; None if it is unknown.

    TPUs compute float32 products in bfloat16 by default.
    """
    return _TPUS.get(generation)
