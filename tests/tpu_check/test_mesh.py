"""Compiles a small step for meshes of TPU devices, as `fit --strategy pjrt` does."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from tpu_trainer.config import CompileCheckConfig, MeshConfig, ModelConfig, Recompute, TrainConfig
from tpu_trainer.config.mesh import DATA
from tpu_trainer.devices.pjrt.stablehlo import Program
from tpu_trainer.support.chips import Topology
from tpu_trainer.support.errors import UsageError
from tpu_trainer.tpu_check.collectives import collectives
from tpu_trainer.tpu_check.compiler import MeshModule, compile_module
from tpu_trainer.tpu_check.hlo import HloModule
from tpu_trainer.verbs import compile_check

CONFIG = CompileCheckConfig(
    objective="clm",
    strategy="pjrt",
    model=ModelConfig(type="gpt2", config={"n_embd": 256, "n_layer": 2, "n_head": 4}),
    train=TrainConfig(batch_size=16, precision="mixed_bfloat16", recompute="all"),
    vocab_size=512,
    max_length=128,
)
# GPT-2's, with the vocabulary and the positions.
WEIGHTS = 2 * (12 * 256**2 + 13 * 256) + (512 + 128) * 256 + 2 * 256


def report_of(tmp_path: Path, mesh: MeshConfig, topology: str = "v5e:2x4") -> dict[str, Any]:
    output = str(tmp_path / "report.json")
    cache = str(tmp_path / "cache")
    compile_check.main(replace(CONFIG, mesh=mesh, topology=topology, output=output, cache=cache))
    (report,) = json.loads(Path(output).read_text())["reports"]
    return report


@pytest.mark.parametrize(
    ("topology", "fsdp", "gathers"), [("v5e:2x4", True, 2), ("v5e:2x4", "keep", 1), ("tpu7x:2x2x1", True, 2)]
)
def test_fsdp_divides_weights_and_sends_as_little_as_zero_3(
    topology: str, fsdp: Any, gathers: int, tmp_path: Path
) -> None:
    report = report_of(tmp_path, MeshConfig(fsdp=fsdp), topology)
    assert report["mesh"] == {"data": 8, "expert": 1, "sequence": 1, "model": 1, "fsdp": fsdp}
    assert report["replica_rows"] == 2
    assert (
        12 * WEIGHTS / 8 < report["hbm"]["arguments"] < 1.3 * 12 * WEIGHTS / 8
    )  # biases and norms are whole
    # Weights are gathered in bfloat16; with `true`, for the forward and for the backward pass.
    bytes_by_kind = {each["kind"]: each["bytes"] / (2 * WEIGHTS) for each in report["collectives"]}
    assert 0.9 * gathers < bytes_by_kind["all-gather"] < 1.2 * gathers
    assert 0.7 < bytes_by_kind["reduce-scatter"] < 1.2  # some small gradients are summed whole
    zero_3_bytes = 3 * 2 * WEIGHTS * 7 / 8
    sent_bytes = sum(each["sent"] for each in report["collectives"]) / zero_3_bytes
    assert 0.9 < sent_bytes < 1.2 if gathers == 2 else sent_bytes < 0.9
    assert report["roofline"]["communication_seconds"] > 0


@pytest.mark.parametrize("find_mesh", [False, True])
def test_a_topology_that_libtpu_does_not_know_is_refused_before_the_step_is_lowered(
    find_mesh: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for method in ("check.StepCheck.report", "find_mesh.MeshFinder"):
        monkeypatch.setattr(f"tpu_trainer.tpu_check.{method}", None)
    train = TrainConfig(batch_size=15)
    with pytest.raises(UsageError, match=r"--topology is 'v5e:3x5': .*; choose other sides"):
        compile_check.main(replace(CONFIG, topology="v5e:3x5", train=train, find_mesh=find_mesh))


def test_tpu7x_gathers_large_weights_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = tf.Variable(tf.zeros([4096, 4096]))

    def function(batch: dict[str, tf.Tensor]) -> tf.Tensor:
        return tf.reduce_sum(tf.square(tf.matmul(batch["x"], tf.cast(weight, tf.bfloat16))))

    module = MeshModule(
        lowered=Program(function, {"x": tf.TensorSpec([8 * 8192, 4096], tf.bfloat16)}).lower(),
        placements=(((DATA,), ()), ((), (DATA,))),
        mesh=MeshConfig(data=8, fsdp=True),
    )

    def kinds() -> set[str]:
        compiled = compile_module(module, Topology.parse("tpu7x:2x2x1"))
        return {each.kind for each in collectives(HloModule.parse(compiled.hlo))} - {"all-reduce"}

    assert kinds() == {"all-gather"}
    # By default, libtpu lets devices pass their parts on, one of them in vain.
    monkeypatch.setattr("tpu_trainer.devices.pjrt.mesh.KINDS", {})
    assert kinds() == {"collective-permute"}


def test_recomputed_layers_keep_less_and_are_computed_again(tmp_path: Path) -> None:
    def report(recompute: Recompute) -> dict[str, Any]:
        train = TrainConfig(batch_size=64, precision="mixed_bfloat16", recompute=recompute)
        model = ModelConfig(type="gpt2", config={"n_embd": 128, "n_layer": 4, "n_head": 4})
        output = str(tmp_path / "report.json")
        config = replace(CONFIG, model=model, max_length=256, train=train, topology="v5e:1x1", output=output)
        compile_check.main(config)
        return json.loads(Path(output).read_text())["reports"][0]

    plain, recomputed = report("nothing"), report("all")
    assert recomputed["hbm"]["temporaries"] < 0.3 * plain["hbm"]["temporaries"]
    tokens = 64 * 256
    forward = 4 * tokens * (2 * 12 * 128**2 + 2 * 2 * 256 * 128)  # products with weights, and attention's
    # A layer's last product is not needed again.
    assert 0.6 * forward < recomputed["flops"] - plain["flops"] < 1.1 * forward


def test_tensor_parallelism_with_two_devices_on_a_chip(tmp_path: Path) -> None:
    report = report_of(tmp_path, MeshConfig(model=4), "tpu7x:2x2x1")
    assert report["mesh"] == {"data": 2, "expert": 1, "sequence": 1, "model": 4, "fsdp": False}
    kinds = {each["kind"]: each["bytes"] for each in report["collectives"]}
    activations = 2 * 8 * 128 * 256  # of a group, in bfloat16
    assert kinds["all-reduce"] > 5 * 2 * activations
    assert report["hbm"]["available"] == 96 * 2**30


def test_devices_run_the_attention_kernel_on_their_own_rows_and_heads(tmp_path: Path) -> None:
    def report(**options: Any) -> dict[str, Any]:
        train = TrainConfig(batch_size=16, precision="mixed_bfloat16", **options)
        # Two layers: the compiler unrolls a loop over one, and then does not compute its scores twice.
        model = ModelConfig(type="gpt2", config={"n_embd": 256, "n_layer": 2, "n_head": 4})
        paths = {"output": str(tmp_path / "report.json"), "hlo": str(tmp_path / "hlo")}
        mesh = MeshConfig(model=2, fsdp=True)
        compile_check.main(replace(CONFIG, model=model, max_length=512, train=train, mesh=mesh, **paths))
        return json.loads(Path(paths["output"]).read_text())["reports"][0]

    recomputed, kernel = report(recompute="attention"), report(attention_kernel=True)

    def sent_bytes(report: dict[str, Any]) -> int:
        return sum(each["sent"] for each in report["collectives"])

    # If devices gathered the operands of the kernels, they would send several arrays of 16 x 512 x 256 more.
    assert sent_bytes(kernel) == pytest.approx(sent_bytes(recomputed), rel=0.02)
    assert kernel["flops"] == pytest.approx(recomputed["flops"], rel=0.2)
    assert kernel["bytes_accessed"] < 0.85 * recomputed["bytes_accessed"]
    lines = Path(kernel["hlo"]).read_text().splitlines()
    kernels = [line for line in lines if 'custom_call_target="tpu_custom_call"' in line]
    # 16 rows by 4 groups, 2 of 4 heads of 64 dimensions.
    assert len(kernels) == 2 and all(
        "bf16[4,512,128]" in line.partition(" custom-call(")[0] for line in kernels
    )


def test_arguments_that_do_not_fit_need_no_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tpu_trainer.tpu_check.cache.compile_module", None)
    # 19 GB of weights and moments, of which only the shapes exist.
    large_config = replace(
        CONFIG, model=ModelConfig(type="gpt2", config={"n_embd": 8192, "n_layer": 2, "n_head": 64})
    )
    compile_check.main(replace(large_config, cache=str(tmp_path)))
    assert "NO" in capsys.readouterr().out
