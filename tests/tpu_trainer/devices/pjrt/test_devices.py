"""Generations and peaks of a mesh's devices, with stand-ins for TPUs and GPUs."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from tpu_trainer.config import DataConfig, FitConfig, MeshConfig, TrainConfig
from tpu_trainer.devices.devices import Target
from tpu_trainer.devices.pjrt import devices
from tpu_trainer.devices.pjrt.devices import PjrtDevices
from tpu_trainer.devices.pjrt.peers import Peers
from tpu_trainer.network.division import Division
from tpu_trainer.support.errors import UsageError

Opener = Callable[..., PjrtDevices]


@pytest.fixture
def open_devices(monkeypatch: pytest.MonkeyPatch) -> Opener:
    def open_devices(platform: str, kind: str, *, kernel: bool = False) -> PjrtDevices:
        config = MeshConfig(data=2, model=4)
        mesh = SimpleNamespace(platform=platform, kind=kind, config=config, devices=8)
        monkeypatch.setattr(devices, "DeviceMesh", lambda config: mesh)
        train = TrainConfig(attention_kernel=kernel)
        return PjrtDevices(FitConfig(output_dir="", data=DataConfig(train=""), train=train), Peers())

    return open_devices


@pytest.mark.parametrize(
    ("kind", "generation"), [("TPU v5 lite", "v5e"), ("TPU v5", "v5p"), ("TPU7x", "tpu7x")]
)
def test_a_mesh_of_tpus_has_the_kernel_of_its_generation(
    open_devices: Opener, kind: str, generation: str
) -> None:
    target = Target(kernel_generation=generation, splash=True, division=Division(data=2, model=4))
    assert open_devices("tpu", kind, kernel=True).target == target


def test_other_devices_have_no_kernel_and_unknown_tpus_are_refused(open_devices: Opener) -> None:
    no_kernel = Target(division=Division(data=2, model=4))
    assert open_devices("tpu", "TPU v4").target == no_kernel
    assert open_devices("cpu", "cpu", kernel=True).target == no_kernel
    assert open_devices("tpu", "TPU9").target == no_kernel
    with pytest.raises(UsageError, match=r"for this TPU, 'TPU9', there is no kernel; use --train\.recompute"):
        _ = open_devices("tpu", "TPU9", kernel=True).target


def test_the_peak_is_that_of_all_devices(open_devices: Opener) -> None:
    assert open_devices("tpu", "TPU v5e").peak_flops(bfloat16=False) == 8 * 197e12
    assert open_devices("gpu", "NVIDIA L4").peak_flops(bfloat16=True) == 8 * 121e12
    assert open_devices("gpu", "GeForce GT 710").peak_flops(bfloat16=True) is None
    assert open_devices("tpu", "TPU9").peak_flops(bfloat16=True) is None
    assert open_devices("cpu", "cpu").peak_flops(bfloat16=True) is None
