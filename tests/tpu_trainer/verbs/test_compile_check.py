"""compile-check without a TPU compiler: its rules, its arithmetic, its options."""

from __future__ import annotations

import ast
import inspect
import json
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import tpu_trainer
from tests.tpu_trainer.product_flops import product_flops
from tests.tpu_trainer.tpu_check.test_hlo import HLO
from tpu_trainer.config import CompileCheckConfig, ModelConfig
from tpu_trainer.support.chips import CHIPS, Topology
from tpu_trainer.support.errors import UsageError
from tpu_trainer.tpu_check import cache, compiler, rules
from tpu_trainer.tpu_check.compiler import BatchFunction, Executable, OutOfMemory
from tpu_trainer.tpu_check.figures import figures, roofline, table
from tpu_trainer.tpu_check.step import ReplicaStep, rows_without_dataset
from tpu_trainer.verbs import compile_check
from tpu_trainer.verbs.command_line import parse
from tpu_trainer.verbs.compile_check import find_largest_batch

SQUARE = {"x": tf.TensorSpec([4, 4])}


def line_of(function: Callable[..., Any], text: str) -> str:
    """`file:line` of the line in `function` that holds `text`."""
    lines, first = inspect.getsourcelines(function)
    index = next(index for index, line in enumerate(lines) if text in line)
    return f"{__file__}:{first + index}: "


def test_a_python_condition_on_data_is_named() -> None:
    @tf.autograph.experimental.do_not_convert
    def step(batch: dict[str, tf.Tensor]) -> tf.Tensor:
        total = tf.reduce_sum(batch["x"])
        if total > 0:
            return total
        return -total

    module, (finding,) = rules.check_and_lower(BatchFunction(step, SQUARE))
    assert module is None
    assert finding.rule == rules.CONDITION
    assert finding.place.startswith(line_of(test_a_python_condition_on_data_is_named, "if total > 0"))
    assert "if total > 0" in finding.place


def test_a_branch_on_the_device_is_told_but_compiles() -> None:
    def step(batch: dict[str, tf.Tensor]) -> tf.Tensor:
        total = tf.reduce_sum(batch["x"])
        return tf.cond(total > 0, lambda: total, lambda: -total)

    (finding,) = rules.graph_findings(BatchFunction(step, SQUARE).trace())
    assert (finding.rule, finding.fatal) == (rules.CONDITION, False)
    assert finding.place.startswith(line_of(test_a_branch_on_the_device_is_told_but_compiles, "tf.cond"))


def test_a_shape_that_depends_on_data_is_named_inside_a_loop_too() -> None:
    def step(batch: dict[str, tf.Tensor]) -> tf.Tensor:
        def body(i: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return i + 1, total + tf.reduce_sum(tf.boolean_mask(batch["x"], batch["x"] > total))

        return tf.while_loop(lambda i, total: i < 3, body, [0, 0.0])[1]

    module, (finding,) = rules.check_and_lower(BatchFunction(step, SQUARE))
    assert module is None
    assert finding.rule == rules.SHAPE
    name = line_of(test_a_shape_that_depends_on_data_is_named_inside_a_loop_too, "tf.boolean_mask")
    assert finding.place.startswith(name)


def test_an_input_of_changing_shape_is_named() -> None:
    specs = {"x": tf.TensorSpec([4, 4]), "row": tf.TensorSpec([None], tf.int32)}
    module, (finding,) = rules.check_and_lower(BatchFunction(lambda batch: batch["x"], specs))
    assert module is None
    assert finding.rule == rules.INPUT_SHAPE
    assert "'row' has shape (None,)" in finding.problem


def test_a_sound_step_has_no_findings() -> None:
    graph = BatchFunction(lambda batch: tf.where(batch["x"] > 0, batch["x"], 0.0), SQUARE).trace()
    assert rules.graph_findings(graph) == []


def test_product_flops() -> None:
    weights = tf.ones([4, 8])

    def step(batch: dict[str, tf.Tensor]) -> tf.Tensor:
        products = tf.matmul(batch["x"], weights)  # 2 · 4 · 8 · 4
        outer_product = tf.einsum("ab,cb->ac", products, products)  # 2 · 4 · 4 · 8
        return tf.while_loop(  # 5 · (2 · 4 · 4 · 4)
            lambda i, y: i < 5,
            lambda i, y: (i + 1, tf.matmul(y, y, transpose_a=True)),
            [0, outer_product],
            maximum_iterations=5,
        )[1]

    assert product_flops(BatchFunction(step, SQUARE).trace()) == 256 + 256 + 5 * 128


def test_the_trainers_step_keeps_the_rules_and_sums_over_replicas() -> None:
    network = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    config = CompileCheckConfig(model=ModelConfig(type="roberta", config=network))
    rows = rows_without_dataset(config, vocab_size=100, max_length=8)
    step = ReplicaStep(config=config, rows=rows, topology=Topology.parse("v5e:2x2"))
    graph = step.program(2).trace()
    assert rules.graph_findings(graph) == []
    assert any(operation.type == "XlaAllReduce" for operation in graph.get_operations())
    products = 16 * 16 * 4 + 2 * 16 * 24 + 2 * 8 * 16  # weights, and scores with their use
    head = 16 * 16 + 16 * 128  # at the one position of 8 that is predicted
    assert step.model_flops(2) == 3 * 2 * (2 * 8 * products + 2 * 1 * head)


def test_model_flops_of_windows_are_those_of_the_keys_in_them() -> None:
    def row_flops(window: int) -> float:
        network = {
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "intermediate_size": 24,
            "sliding_window": window,
            "layer_types": ["sliding_attention", "full_attention"],
        }
        model = ModelConfig(type="gemma2", config=network)
        config = CompileCheckConfig(objective="clm", model=model)
        rows = rows_without_dataset(config, vocab_size=100, max_length=64)
        return ReplicaStep(config=config, rows=rows, topology=Topology.parse("v5e:2x2")).model_flops(1)

    # 64 queries; scores and weighted sums of 2 heads of 8, in one of the layers.
    assert row_flops(64) - row_flops(4) == 3 * 4 * 64 * (64 - 4) * 16


@pytest.mark.parametrize(
    ("name", "replicas"),
    [("v3:2x2", 8), ("v4:2x2x1", 4), ("v5e:2x4", 8), ("v5p:2x2x2", 8), ("v6e:1x1", 1), ("tpu7x:2x2x1", 8)],
)
def test_replicas_of_a_topology(name: str, replicas: int) -> None:
    assert Topology.parse(name).replicas == replicas


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("v5e", r"'v5e': give a generation and the number of chips along each side, such as v5e:2x4"),
        ("v9:2x4", "the generation must be one of v3, v4, v5e, v5p, v6e, tpu7x"),
        ("v4:2x2", "v4 needs 3 sides of at least 1, such as v4:2x2x1"),
        ("v5e:0x4", "v5e needs 2 sides of at least 1"),
    ],
)
def test_topologies_that_cannot_be(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Topology.parse(name)


def test_roofline() -> None:
    # v3: 123 TFLOP/s and 900 GB/s for two replicas.
    line = roofline(
        Topology.parse("v3:1x1"),
        flops=61.5e12,
        hbm_traffic=900e9,
        sent=1e9,
        model_flops=30.75e12,
        tokens=1000,
    )
    assert line["compute_seconds"] == pytest.approx(1)
    assert line["memory_seconds"] == pytest.approx(2)
    assert (line["bound_by"], line["least_step_seconds"]) == ("memory", pytest.approx(2))
    assert line["tokens_per_second"] == pytest.approx(500)
    assert line["mfu_bound"] == pytest.approx(0.25)
    assert all(chip.source.startswith("https://cloud.google.com/tpu/docs/") for chip in CHIPS.values())


@pytest.mark.parametrize(
    ("name", "bandwidth"),
    [
        ("v5e:1x1", 0),
        ("v5e:2x4", 100e9),  # two of four links
        ("v5e:8x16", 150e9),  # the longer side is a ring
        ("v5e:16x16", 200e9),
        ("v4:2x2x1", 100e9),
        ("v5p:4x4x4", 600e9),
        ("tpu7x:2x2x1", 200e9),
    ],
)
def test_links_of_a_chip_at_a_corner(name: str, bandwidth: float) -> None:
    assert Topology.parse(name).ici_bandwidth == pytest.approx(bandwidth)


def test_sending_can_bound_a_step() -> None:
    line = roofline(
        Topology.parse("v5e:2x4"), flops=1e9, hbm_traffic=1e9, sent=50e9, model_flops=1e9, tokens=8000
    )
    assert (line["bound_by"], line["least_step_seconds"]) == ("communication", pytest.approx(0.5))
    assert line["tokens_per_second"] == pytest.approx(16000)


def report_of(result: Executable | OutOfMemory) -> dict[str, Any]:
    return figures(result, topology=Topology.parse("v5e:1x1"), replica_rows=2, max_length=8, model_flops=1e9)


def test_figures_of_a_program_with_a_loop() -> None:
    # The compiler counts a loop's body once.
    result = Executable(
        arguments=100,
        outputs=60,
        aliased=50,
        temporaries=30,
        code=5,
        flops=32768.0,
        bytes_accessed=9000.0,
        hlo=HLO,
    )
    report = report_of(result)
    assert report["hbm"]["needed"] == 145
    assert report["flops"] == 7 * 32768
    assert report["bytes_accessed"] == 9000 + 6 * 8192
    # Seven trips, whose product stays on the chip, and before and after them two conversions and a sum.
    bytes_of_iteration, other_bytes = (
        4 * (16 * 32 + 32 * 32),
        (4 + 2) * 16 * 32 + (2 + 2) * 16 * 32 + (2 + 4) * 16 * 32,
    )
    assert report["hbm_traffic"] == 7 * bytes_of_iteration + other_bytes
    assert report["intensity"] == report["flops"] / report["hbm_traffic"]
    text = table([("a", report), ("b", report_of(OutOfMemory(needed=3e10, available=1.6e10)))])
    assert [line.split()[-2:] for line in text.splitlines() if line.startswith("fits")] == [["yes", "NO"]]
    report_of_many_loops = report | {"loops": report["loops"] * 100 + [{"trips": None}]}
    assert table([("a", report_of_many_loops)]).splitlines()[-1].split(maxsplit=3)[3] == "7 (100 loops), ?"


@pytest.mark.parametrize("max_rows", [3, 8, 9, 100, 1001])
@pytest.mark.parametrize("exponent", [0.7, 1.0, 1.5])
def test_the_largest_batch_that_fits(max_rows: int, exponent: float) -> None:
    tried_rows = []

    def check(rows: int) -> dict[str, Any]:
        tried_rows.append(rows)
        hbm = {"needed": 5.0 + rows**exponent, "available": 5.0 + (max_rows + 0.5) ** exponent}
        return {"fits": hbm["needed"] <= hbm["available"], "replica_rows": rows, "hbm": hbm}

    assert find_largest_batch(check, multiple=3)["replica_rows"] == max_rows // 3 * 3
    assert len(set(tried_rows)) == len(tried_rows) <= 14
    with pytest.raises(UsageError, match="not even 2000 row"):
        find_largest_batch(check, multiple=2000)


def test_other_releases_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = compiler.WRITTEN_FOR | {"jax": "0.11.0"}
    monkeypatch.setattr(metadata, "version", lambda name: installed[name])
    with pytest.raises(UsageError, match=r"needs jax 0.10, but 0.11.0 is installed; `make compile-check`"):
        compiler.versions()

    def raise_not_found(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", raise_not_found)
    with pytest.raises(UsageError, match=r"needs tensorflow 2.20, but tensorflow is not installed"):
        compiler.versions()


@pytest.mark.parametrize("folder", ["missing/cache", "file", "file/cache"])
def test_a_cache_that_cannot_be_written_does_not_lose_the_result(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    result, compiled = OutOfMemory(needed=2.0, available=1.0), []
    monkeypatch.setattr(cache, "versions", lambda: {})
    monkeypatch.setattr(cache, "compile_module", lambda *_: compiled.append(1) or result)
    module, topology = compiler.Module(text="", digest="0"), Topology.parse("v5e:1x1")
    for _ in range(2):
        assert cache.Cache(folder=tmp_path / folder).compile(module, topology) == result
    is_unwritable = folder.startswith("file")
    assert len(compiled) == 1 + is_unwritable and ("cannot be written" in caplog.text) == is_unwritable


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--topology", "v1:1x1"], "the generation must be one of"),
        (["--train.batch_size", "12"], "must be a multiple of the 8 replicas of v5e:2x4"),
        (
            ["--compare", "a.yaml", "b.yaml", "--train.steps", "3"],
            "--train cannot be combined with --compare",
        ),
        (["--train.accumulation", "3"], "24: 8 replicas of v5e:2x4 times --train.accumulation 3"),
        (["--output", "/dev/null/report.json"], "--output is '/dev/null/report.json': cannot be written"),
        (["--output", "/"], "--output is '/': cannot be written"),
        (["--hlo", "/dev/null/hlo"], "--hlo is '/dev/null/hlo': cannot be written"),
        (["--vocab_size", "3"], "--vocab_size is 3: must be at least 8"),
        (["--data.train", "OUT", "--max_length", "64"], "--max_length is 64: --data.train determines it"),
    ],
)
def test_options_that_do_not_fit(
    arguments: list[str], message: str, run_verb: Callable[..., int], capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(compiler, "versions", lambda: {})
    assert run_verb("compile-check", *arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ("train: {batch_size: 12}", "--train.batch_size is 12: it must be"),
        ("model: {config: {num_attention_heads: 7}}", "7 heads do not divide the hidden size of 768"),
        ("strategy: pjrt\nmesh: {model: 5}", "--mesh.model is 5"),
    ],
)
def test_both_configurations_are_checked_before_the_first_is_compiled(
    second: str, message: str, tmp_path: Path, run_verb: Callable[..., int], capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(compiler, "versions", lambda: {})
    monkeypatch.setattr("tpu_trainer.tpu_check.check.StepCheck.report", None)  # calling it is an error
    paths = [tmp_path / "a.yaml", tmp_path / "b.yaml"]
    paths[0].write_text("train: {batch_size: 16}\n")
    paths[1].write_text(f"{second}\n")
    assert run_verb("compile-check", "--compare", *map(str, paths)) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("strategy", ["tpu", "pjrt"])
def test_the_largest_batch_has_equal_micro_batches(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def largest(check: Callable[..., Any], *, multiple: int) -> None:
        raise UsageError(f"multiple of {multiple}")

    monkeypatch.setattr(compiler, "versions", lambda: {})
    monkeypatch.setattr(compiler, "devices_of", lambda topology: [])
    monkeypatch.setattr(compile_check, "find_largest_batch", largest)
    options = ("--strategy", strategy, "--find_batch_size", "--train.accumulation", "3")
    with pytest.raises(UsageError, match="multiple of 24"):
        compile_check.main(parse(["compile-check", *options])[1])


def test_a_model_to_start_from_determines_the_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"model_type": "gpt2", "n_embd": 32, "n_layer": 3, "n_head": 2, "n_positions": 64}
    (tmp_path / "config.json").write_text(json.dumps(values))
    checked = []
    monkeypatch.setattr(compiler, "versions", lambda: {})
    monkeypatch.setattr(compiler, "devices_of", lambda topology: [])
    monkeypatch.setattr(compile_check, "_show", lambda columns, topology: None)
    monkeypatch.setattr(
        "tpu_trainer.tpu_check.check.StepCheck.report", lambda self, rows: checked.append(self.step) or {}
    )
    options = ("--objective", "clm", "--max_length", "64", "--vocab_size", "100")
    compile_check.main(parse(["compile-check", "--model.init_from", str(tmp_path), *options])[1])
    architecture = checked[0]._task_for(1).objective.model.network.architecture
    assert (architecture.width, len(architecture.kinds)) == (32, 3)


def test_a_refused_topology_costs_no_tensorflow() -> None:
    code = (
        "import sys; from tpu_trainer.__main__ import main; "
        "sys.argv = ['tpu_trainer', 'compile-check', '--topology', 'v9:2x2']; status = main(); "
        "assert 'tensorflow' not in sys.modules; sys.exit(status)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 2, result.stderr


def test_both_spellings_of_a_flag() -> None:
    for flag in ("--find-batch-size", "--find_batch_size"):
        assert parse(["compile-check", flag])[1].find_batch_size
    assert not parse(["compile-check"])[1].find_batch_size


def test_only_what_compiles_or_executes_programs_imports_jax() -> None:
    allowed = {
        "tpu_check": ("compiler.py", "kernel_sources.py"),
        "pjrt": (
            "cudnn_calls.py",
            "executor.py",
            "lowering_cache.py",
            "mesh.py",
            "operations.py",
            "partitioning.py",
            "peers.py",
            "splash_kernels.py",
            "stablehlo.py",
        ),
    }
    for path in Path(tpu_trainer.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if {name.split(".")[0] for name in names} & {"jax", "jaxlib", "libtpu"}:
                assert path.name in allowed.get(path.parent.name, ()), path
                uses_private = any("_src" in name or name.startswith("jaxlib.") for name in names)
                private_users = (
                    "compiler.py",
                    "cudnn_calls.py",
                    "mesh.py",
                    "operations.py",
                    "partitioning.py",
                    "peers.py",
                    "splash_kernels.py",
                    "stablehlo.py",
                )
                assert path.name in private_users or not uses_private, path
