"""Checks of deploy/trainer.Dockerfile and its locks without building it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "deploy" / "trainer.Dockerfile").read_text()
LOCKS = {
    "tpu": "requirements-tpu.lock",
    "pjrt": "requirements-pjrt.lock",
    "gpu": "requirements-gpu.lock",
    "cpu": "requirements.lock",
}


def stage(name: str) -> str:
    """Returns the instructions of a stage."""
    return re.search(rf"^FROM \S+ AS {name}\n(.*?)(?=^FROM |\Z)", DOCKERFILE, re.MULTILINE | re.DOTALL)[1]


def pins(lock: str) -> dict[str, str]:
    text = (ROOT / "trainer" / lock).read_text()
    return dict(re.findall(r"^([\w.-]+)==(\S+) \\$", text, re.MULTILINE))


@pytest.mark.parametrize("target", LOCKS)
def test_each_target_installs_its_lock_with_hashes(target: str) -> None:
    packages = stage(f"{target}-packages")
    assert f"COPY trainer/{LOCKS[target]} ./" in packages
    assert re.search(rf"uv pip install --require-hashes .*--requirements {LOCKS[target]} ", packages)
    assert ("--no-deps" in packages) == (target == "tpu")
    assert f"COPY --from={target}-packages /venv /venv" in stage(target)


def test_copied_files_exist() -> None:
    for source in re.findall(r"^COPY ((?:reader|trainer)\S*) ", DOCKERFILE, re.MULTILINE):
        assert (ROOT / source).exists(), source


def test_only_the_tpus_images_run_as_root() -> None:
    for target in ("tpu", "pjrt"):
        assert "USER" not in re.sub("#.*", "", stage(target))
    for target in ("gpu", "cpu"):
        assert stage(target).rstrip().endswith("USER 10001")


def test_no_check_of_an_image_loads_libtpu() -> None:
    # libtpu would wait for a TPU's metadata server, which build machines do not have.
    for command in re.findall(r"^RUN (.*)$", DOCKERFILE, re.MULTILINE):
        if re.search(r"import .*tensorflow", command):
            assert command.startswith("TPU_LOAD_LIBRARY=0 python ")


def test_the_image_uses_the_uv_release_of_the_locks() -> None:
    version = re.search(r"^UV_VERSION := (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1]
    assert f"uv=={version} " in DOCKERFILE


def test_the_tpus_lock_has_tensorflow_once() -> None:
    tpu, cpu = pins(LOCKS["tpu"]), pins(LOCKS["cpu"])
    assert "tensorflow" not in tpu and "libtpu" in tpu
    # The tests run with the same releases.
    assert tpu.pop("tensorflow-tpu") == cpu.pop("tensorflow")
    assert {name: version for name, version in tpu.items() if name != "libtpu"} == cpu


def test_the_gpus_lock_adds_nvidias_packages_only() -> None:
    gpu, cpu = pins(LOCKS["gpu"]), pins(LOCKS["cpu"])
    assert cpu.items() <= gpu.items()
    assert all(name.startswith("nvidia-") for name in gpu.keys() - cpu.keys())


def test_the_lock_of_pjrt_adds_the_tested_jax_and_libtpu() -> None:
    pjrt, cpu, tested = pins(LOCKS["pjrt"]), pins(LOCKS["cpu"]), pins("requirements-dev.lock")
    assert cpu.items() <= pjrt.items()
    added_versions = {name: version for name, version in pjrt.items() if name not in cpu}
    libtpu = added_versions.pop("libtpu")
    assert (
        libtpu
        and added_versions["jax"] == added_versions["jaxlib"]
        and added_versions.items() <= tested.items()
    )
