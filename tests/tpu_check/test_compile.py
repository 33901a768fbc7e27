"""Compiles small programs and a small training step with the real TPU compiler."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import tensorflow as tf

from tpu_trainer.config import CompileCheckConfig, MlmConfig, ModelConfig, TrainConfig
from tpu_trainer.support.chips import Topology
from tpu_trainer.tpu_check import rules
from tpu_trainer.tpu_check.cache import Cache
from tpu_trainer.tpu_check.collectives import collectives
from tpu_trainer.tpu_check.compiler import BatchFunction, Executable, OutOfMemory, all_reduce, compile_module
from tpu_trainer.tpu_check.figures import figures
from tpu_trainer.tpu_check.hlo import HloModule
from tpu_trainer.tpu_check.step import ReplicaStep, rows_without_dataset
from tpu_trainer.verbs import compile_check

ONE_OF_EACH = ("v3:1x1", "v4:1x1x1", "v5e:1x1", "v5p:1x1x1", "v6e:1x1")
MATRIX = {"x": tf.TensorSpec([512, 512])}
TINY = CompileCheckConfig(
    model=ModelConfig(
        type="roberta",
        config={
            "hidden_size": 128,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "intermediate_size": 256,
            "type_vocab_size": 1,
        },
    ),
    mlm=MlmConfig(probability=0.25),
    train=TrainConfig(batch_size=32),
    topology="v5e:2x2",
    vocab_size=1000,
    max_length=64,
)


def compiled(program: BatchFunction, topology: str = "v5e:1x1") -> Executable | OutOfMemory:
    module, findings = rules.check_and_lower(program)
    assert module is not None, findings
    return compile_module(module, Topology.parse(topology))


@pytest.fixture(scope="module")
def step() -> ReplicaStep:
    rows = rows_without_dataset(TINY, vocab_size=TINY.vocab_size, max_length=TINY.max_length)
    return ReplicaStep(config=TINY, rows=rows, topology=Topology.parse("v5e:1x1"))


@pytest.mark.parametrize("topology", ONE_OF_EACH)
def test_the_trainers_step_compiles_for_each_generation(step: ReplicaStep, topology: str) -> None:
    module, findings = rules.check_and_lower(step.program(8))
    assert findings == []
    result = compile_module(module, Topology.parse(topology))
    assert isinstance(result, Executable)
    parameters = (
        128 * (1024 + 66 + 1) + 4 * 128 * 129 + 2 * 128 * 256 + 256 + 128 + 128 * 129 + 1024 + 8 * 128
    )
    # float32 weights and two moments; tiles may pad them.
    assert 12 * parameters * 0.99 < result.arguments < 12 * parameters * 1.2
    assert result.aliased > 12 * parameters * 0.99  # updated in place
    report = figures(
        result,
        topology=Topology.parse(topology),
        replica_rows=8,
        max_length=64,
        model_flops=step.model_flops(8),
    )
    assert report["fits"]
    # Mostly matrix products, and no recomputation.
    assert 0.8 < report["roofline"]["model_flops"] / report["flops"] <= 1.05
    assert report["collectives"] == report["loops"] == []


def test_sums_over_replicas_become_collectives() -> None:
    def step(batch: dict[str, tf.Tensor]) -> tf.Tensor:
        return all_reduce([batch["x"], batch["x"] @ batch["x"]], 4)

    result = compiled(BatchFunction(step, MATRIX), "v5e:2x2")
    sums = collectives(HloModule.parse(result.hlo))
    assert {collective.kind for collective in sums} == {"all-reduce"}
    assert sum(collective.bytes for collective in sums) == 2 * 4 * 512 * 512


def test_every_iteration_of_a_loop_is_counted() -> None:
    def report(iterations: int) -> dict:
        def step(batch: dict[str, tf.Tensor]) -> tf.Tensor:
            return tf.while_loop(
                lambda i, y: i < iterations, lambda i, y: (i + 1, tf.nn.relu(y @ batch["x"])), [0, batch["x"]]
            )[1]

        result = compiled(BatchFunction(step, MATRIX))
        return figures(
            result, topology=Topology.parse("v5e:1x1"), replica_rows=1, max_length=1, model_flops=1
        )

    assert [loop["trips"] for loop in report(50)["loops"]] == [50]
    assert report(50)["flops"] == pytest.approx(50 * 2 * 512**3, rel=0.02)


def test_a_program_that_does_not_fit_reports_its_memory() -> None:
    def step(batch: dict[str, tf.Tensor]) -> tf.Tensor:
        products = tf.matmul(batch["x"], batch["x"], transpose_b=True)
        return tf.reduce_sum(products @ tf.sort(products, axis=0))

    result = compiled(BatchFunction(step, {"x": tf.TensorSpec([1 << 17, 128])}))
    assert isinstance(result, OutOfMemory)
    assert result.needed > 4 * 2**34 > result.available > 15 * 2**30


def test_the_largest_batch_that_fits_is_next_to_one_that_does_not(tmp_path: Path) -> None:
    cache, topology = Cache(folder=tmp_path), Topology.parse("v5e:1x1")

    def check(rows: int) -> dict:  # 4 MiB read and 4 MiB written for each row
        module, _ = rules.check_and_lower(
            BatchFunction(lambda batch: batch["x"] + 1.0, {"x": tf.TensorSpec([rows, 1 << 20])})
        )
        return figures(
            cache.compile(module, topology),
            topology=topology,
            replica_rows=rows,
            max_length=1,
            model_flops=1.0,
        )

    report = compile_check.find_largest_batch(check, multiple=64)
    rows, compiled_before = report["replica_rows"], cache.misses
    assert report["fits"]
    # Almost all of 16 GiB: the compiler reserves some.
    assert 1600 < rows <= 2048
    assert rows % 64 == 0
    assert not check(rows + 64)["fits"]
    # Both batches were compiled in the search, so a second search uses only the cache.
    assert compile_check.find_largest_batch(check, multiple=64) == report
    assert cache.misses == compiled_before


def test_an_operation_without_a_kernel_is_named() -> None:
    def step(batch: dict[str, tf.Tensor]) -> tf.Tensor:
        return tf.strings.length(tf.strings.as_string(batch["x"]))

    module, findings = rules.check_and_lower(BatchFunction(step, MATRIX))
    assert module is None
    assert {finding.rule for finding in findings} == {rules.UNSUPPORTED}
    assert any("AsString" in finding.problem for finding in findings)
    assert all(
        f"{__file__}:" in finding.place and "tf.strings.length" in finding.place for finding in findings
    )


def test_the_verb_caches_programs_and_compares_configurations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    config = replace(TINY, cache=str(tmp_path / "cache"), output=str(tmp_path / "first.json"))
    compile_check.main(config)
    first = capsys.readouterr()
    assert "1 compiled, 0 from" in caplog.text
    assert "Not shown: the real step time" in first.out
    compile_check.main(replace(config, output=str(tmp_path / "again.json")))
    second = capsys.readouterr()
    assert "0 compiled, 1 from" in caplog.text
    assert second.out == first.out
    assert (tmp_path / "again.json").read_text() == (tmp_path / "first.json").read_text()
    (report,) = json.loads((tmp_path / "first.json").read_text())["reports"]
    assert report["replicas"] == 4
    assert report["replica_rows"] == 8
    assert sum(collective["bytes"] for collective in report["collectives"]) >= 4 * 128 * 1024

    for name, batch in (("a.yaml", 32), ("b.yaml", 64)):
        values = {
            "model": {"config": TINY.model.config},
            "mlm": {"probability": 0.25},
            "train": {"batch_size": batch},
        }
        (tmp_path / name).write_text(json.dumps(values))  # JSON is YAML
    paths = [str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml")]
    base_config = CompileCheckConfig(
        topology=TINY.topology, vocab_size=TINY.vocab_size, max_length=TINY.max_length
    ).resolved()
    compile_check.main(
        replace(base_config, cache=config.cache, compare=paths, output=str(tmp_path / "both.json"))
    )
    captured = capsys.readouterr()
    assert "1 compiled, 1 from" in caplog.text
    assert "8 × 64" in captured.out
    small_report, large_report = json.loads((tmp_path / "both.json").read_text())["reports"]
    assert small_report == report | {"name": paths[0]}
    assert large_report["replica_rows"] == 16
    assert small_report["bytes_accessed"] < large_report["bytes_accessed"]


def test_compiled_programs_of_another_topology_are_not_mixed_up(tmp_path: Path) -> None:
    cache = Cache(folder=tmp_path)
    module, _ = rules.check_and_lower(BatchFunction(lambda batch: batch["x"] @ batch["x"], MATRIX))
    for topology in ("v5e:1x1", "v6e:1x1", "v5e:1x1"):
        cache.compile(module, Topology.parse(topology))
    assert (cache.misses, cache.hits) == (2, 1)
