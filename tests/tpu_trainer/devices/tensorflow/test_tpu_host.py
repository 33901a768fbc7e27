"""Detecting the TPU with a stand-in for Compute Engine's metadata server, and loading its library."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from tests.google_cloud.loopback import Loopback, Request, Response
from tests.tpu_trainer.ports import free_ports
from tests.tpu_trainer.small_runs import fit_arguments, metrics
from tpu_trainer.config import DataConfig, FitConfig, TpuConfig, TrainConfig
from tpu_trainer.devices import peak_flops
from tpu_trainer.devices.devices import Target
from tpu_trainer.devices.tensorflow import devices, tpu_host
from tpu_trainer.devices.tensorflow.devices import TensorFlowDevices
from tpu_trainer.devices.tensorflow.tpu_host import UnknownTpuError, tpu_generation
from tpu_trainer.network.attention_kernel import kernel_dtype
from tpu_trainer.support.errors import UsageError

GOOGLE = {"Metadata-Flavor": "Google"}
PLACE = "/computeMetadata/v1/instance/attributes/accelerator-type"


class Metadata(Loopback):
    """The metadata server of a TPU VM: gives its answers in order, then repeats the last one."""

    def __init__(self, *answers: Response, seconds: float = 0) -> None:
        super().__init__()
        self.answers, self.seconds, self.request_count = list(answers), seconds, 0

    def serve(self, request: Request) -> Response:
        self.request_count += 1
        time.sleep(self.seconds)
        assert request.headers["Metadata-Flavor"] == "Google"
        if request.path != PLACE:
            return Response(404, b"no such attribute", GOOGLE)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@pytest.fixture
def serving(monkeypatch: pytest.MonkeyPatch) -> Callable[[Metadata], Metadata]:
    monkeypatch.delenv("TPU_ACCELERATOR_TYPE", raising=False)

    def redirect(server: Metadata) -> Metadata:
        monkeypatch.setenv("GCE_METADATA_HOST", server.url.removeprefix("http://"))
        return server

    return redirect


def answer(text: str, status: int = 200, headers: dict[str, str] = GOOGLE) -> Response:
    return Response(status, text.encode(), headers)


@pytest.mark.parametrize(
    ("accelerator_type", "expected"),
    [("v3-8", "v3"), ("v5litepod-8", "v5e"), ("v5p-16", "v5p"), ("v2-8", "v2"), ("v6e-256", "v6e")],
)
def test_the_metadata_server_knows_the_generation(serving: Any, accelerator_type: str, expected: str) -> None:
    with serving(Metadata(answer("busy", 503), answer(f"{accelerator_type}\n"))) as server:
        assert tpu_generation(TpuConfig()) == expected
    assert server.request_count == 2


def test_options_and_environment_come_first(serving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(Metadata(answer("v4-8"))) as server:
        monkeypatch.setenv("TPU_ACCELERATOR_TYPE", "v6e-8")
        assert tpu_generation(TpuConfig()) == "v6e"
        assert tpu_generation(TpuConfig(accelerator_type="v5p-8")) == "v5p"
    assert server.request_count == 0


@pytest.mark.parametrize(
    ("response", "message"),
    [
        (answer("no such attribute", 404), "status 404, 'no such attribute'"),
        (answer("busy", 503), "status 503, 'busy'"),
        (answer("<html>please log in</html>"), "status 200, '<html>please log in"),
        (answer("v3-8", headers={}), "the answer is not a metadata server's"),
        (answer("tpu7x-8"), "is 'tpu7x-8': the known generations are v2, v3, v4, v5e, v5p, v6e"),
    ],
)
def test_an_invalid_answer_is_shown(serving: Any, response: Response, message: str) -> None:
    with serving(Metadata(response)), pytest.raises(UnknownTpuError, match=message) as error:
        tpu_generation(TpuConfig())
    assert "--tpu.accelerator_type" in str(error.value)


def test_a_slow_or_missing_metadata_server_times_out(serving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tpu_host, "_TIMEOUT", 0.05)
    slow_server = Metadata(answer("v3-8"), seconds=0.5)
    with serving(slow_server), pytest.raises(UnknownTpuError, match=r"cannot be read .*timed out"):
        tpu_generation(TpuConfig())
    monkeypatch.setenv("GCE_METADATA_HOST", f"localhost:{free_ports(1)[0]}")
    with pytest.raises(UnknownTpuError, match=r"cannot be read .*refused"):
        tpu_generation(TpuConfig())


def configured(**train: Any) -> FitConfig:
    return FitConfig(output_dir="run", data=DataConfig(train="d/train"), train=TrainConfig(**train))


def test_the_attention_kernel_needs_the_generation(
    serving: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(devices, "is_tpu", lambda strategy: True)
    kernel = configured(attention_kernel=True)
    with serving(Metadata(answer("", 404))):
        local_devices = TensorFlowDevices(configured())
        assert local_devices.target == Target()
        assert local_devices.peak_flops(bfloat16=True) is local_devices.peak_flops(bfloat16=False) is None
        warning = capsys.readouterr().err
        assert warning.count("fit: without mfu: the TPU's generation is unknown: http://") == 1
        with pytest.raises(UsageError, match=r"--train.attention_kernel: the TPU's generation is unknown"):
            _ = TensorFlowDevices(kernel).target
    with serving(Metadata(answer("v3-8"))) as server:
        tpu = TensorFlowDevices(kernel)
        assert tpu.target == Target(kernel_generation="v3")
        assert kernel_dtype("mixed_bfloat16", tpu.target.kernel_generation) == tf.float32
        assert tpu.peak_flops(bfloat16=True) == 61.5e12
    assert server.request_count == 1


def test_a_tpu_vms_log_has_its_mfu(
    serving: Any, run_verb: Any, dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "is_tpu", lambda strategy: True)
    monkeypatch.setitem(peak_flops._TPUS, "v3", 1e6)  # slow enough for a tiny model
    small_config = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 24,
    }
    options = {f"model.config.{name}": value for name, value in small_config.items()}
    options |= {"train.steps": 2, "train.batch_size": 8, "train.log_every": 1, "schedule.warmup_steps": 0}
    with serving(Metadata(answer("v3-8"))) as server:
        assert run_verb(*fit_arguments(dataset, tmp_path / "run", options)) == 0
    assert server.request_count == 1
    assert metrics(tmp_path / "run")[1]["mfu"] > 0


@pytest.mark.parametrize("has_tpu", [True, False])
def test_only_processes_that_use_a_tpu_or_its_compiler_load_its_library(
    has_tpu: bool, run_verb: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tpu_host, "tpu_is_here", lambda: has_tpu)

    def loads(*arguments: str) -> bool:
        monkeypatch.setenv("TPU_LOAD_LIBRARY", "unset")
        monkeypatch.delenv("TPU_LOAD_LIBRARY")
        # Each of them is rejected right after.
        assert run_verb(*arguments) != 0
        return os.environ.get("TPU_LOAD_LIBRARY") != "0"

    missing_folder = str(tmp_path / "missing")
    fit = ["fit", "--output_dir", missing_folder, "--data.train", missing_folder]
    assert loads(*fit) == has_tpu
    assert loads(*fit, "--strategy", "tpu") == has_tpu
    assert loads("evaluate", "--run", missing_folder) == has_tpu
    assert not loads(*fit, "--strategy", "cpu")
    assert not loads(*fit, "--strategy", "pjrt")
    assert not loads("evaluate", "--run", missing_folder, "--strategy", "cpu")
    assert not loads("export", "--run", missing_folder, "--output", missing_folder)
    assert not loads("fill-mask", "--model", missing_folder, "--text", "w1")
    assert not loads("generate", "--model", missing_folder, "--text", "w1")
    assert loads("compile-check", "--topology", "v0:1x1")  # its compiler
