"""The peaks of devices."""

from __future__ import annotations

import pytest

from tpu_trainer.devices.peak_flops import gpu_peak_flops, tpu_peak_flops


@pytest.mark.parametrize(
    ("name", "bfloat16", "expected"),
    [
        ("NVIDIA H200", True, 989e12),
        ("NVIDIA H100 80GB HBM3", False, 494e12),
        ("NVIDIA H100 PCIe", True, 756e12),
        ("NVIDIA A100-SXM4-40GB", True, 312e12),
        ("NVIDIA L4", True, 121e12),
        ("NVIDIA L40S", True, 362e12),
        ("GeForce GT 710", True, None),
    ],
)
def test_published_peaks_of_gpus(name: str, bfloat16: bool, expected: float | None) -> None:
    assert gpu_peak_flops(name, bfloat16=bfloat16) == expected


def test_published_peaks_of_tpus() -> None:
    assert tpu_peak_flops("v5e") == 197e12
    assert tpu_peak_flops("v3") == 61.5e12  # a device is one of a chip's two cores
    assert tpu_peak_flops("") is None
