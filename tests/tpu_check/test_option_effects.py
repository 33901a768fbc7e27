"""Each option that should change the compiled TPU program does: TensorFlow or XLA could discard its effect.

Other files test recompute all, attention_kernel, mesh.fsdp true and mesh.model.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from tpu_trainer.config import (
    CompileCheckConfig,
    MeshConfig,
    MlmConfig,
    ModelConfig,
    OptimizerConfig,
    TrainConfig,
)
from tpu_trainer.devices.pjrt.lowering_cache import LoweringCache
from tpu_trainer.support.chips import Topology
from tpu_trainer.tpu_check.compiler import Executable, compile_module
from tpu_trainer.tpu_check.figures import figures
from tpu_trainer.tpu_check.mesh_step import MeshStep
from tpu_trainer.tpu_check.step import ReplicaStep, rows_without_dataset

ROWS, LENGTH, WIDTH, VOCABULARY = 16, 256, 128, 512
# Two layers: the compiler unrolls a loop over one, and then does not recompute what it has.
GPT2 = {"n_embd": WIDTH, "n_layer": 2, "n_head": 2}
ALONE = Topology.parse("v5e:1x1")
WITHOUT_DROPOUT = {f"{name}_pdrop": 0.0 for name in ("attn", "embd", "resid")}


def configured(**changes: Any) -> CompileCheckConfig:
    values = {
        "objective": "clm",
        "model": ModelConfig(type="gpt2", config=GPT2),
        "train": TrainConfig(batch_size=ROWS),
    }
    return CompileCheckConfig(**values | changes)


def of_step(
    config: CompileCheckConfig, *, vocabulary: int = VOCABULARY, documents: bool = False
) -> dict[str, Any]:
    """Returns the figures of a device's step, and its text as "hlo"."""
    rows = rows_without_dataset(config, vocab_size=vocabulary, max_length=LENGTH)
    if documents:
        row = tf.TensorSpec([ROWS, LENGTH], tf.int32)
        specs = rows.specs(ROWS) | {"position_ids": row, "segment_ids": row}
        rows = replace(rows, specs=lambda _: specs)
    program = ReplicaStep(config=config, rows=rows, topology=ALONE).program(ROWS)
    result = compile_module(program.lower(), ALONE)
    assert isinstance(result, Executable)
    report = figures(result, topology=ALONE, replica_rows=ROWS, max_length=LENGTH, model_flops=1.0)
    return report | {"hlo": result.hlo}


@functools.cache
def base() -> dict[str, Any]:
    return of_step(configured())


def train(**changes: Any) -> dict[str, Any]:
    return of_step(configured(train=TrainConfig(batch_size=ROWS, **changes)))


def test_mixed_precision_moves_fewer_bytes() -> None:
    assert "bf16[" in (mixed := train(precision="mixed_bfloat16"))["hlo"]
    assert mixed["bytes_accessed"] < 0.8 * base()["bytes_accessed"]


def test_recomputed_attention_computes_the_scores_again() -> None:
    recomputed = train(recompute="attention")
    heads = GPT2["n_head"]
    products = GPT2["n_layer"] * 2 * ROWS * heads * LENGTH**2 * (WIDTH // heads)
    assert recomputed["flops"] - base()["flops"] > 0.8 * products


def test_micro_batches_are_a_loop() -> None:
    accumulated = train(accumulation=4)
    assert 4 in [loop["trips"] for loop in accumulated["loops"]]
    assert accumulated["flops"] == pytest.approx(base()["flops"], rel=0.1)


def test_skipped_spikes_keep_the_values_of_before() -> None:
    report = train(skip_spikes=6.0)
    assert report["hbm"]["arguments"] > base()["hbm"]["arguments"]  # the statistics of the loss
    assert report["bytes_accessed"] > base()["bytes_accessed"]


def test_no_dropout_computes_no_random_bits() -> None:
    report = of_step(configured(model=ModelConfig(type="gpt2", config=GPT2 | WITHOUT_DROPOUT)))
    assert report["hlo"].count(" xor(") < base()["hlo"].count(" xor(") / 4


def test_the_mean_of_weights_is_one_more_copy() -> None:
    averaged = of_step(configured(optimizer=OptimizerConfig(ema=0.999)))
    ratio = averaged["hbm"]["arguments"] / base()["hbm"]["arguments"]
    assert ratio == pytest.approx(16 / 12, rel=0.02)
    assert averaged["hbm"]["outputs"] == pytest.approx(base()["hbm"]["outputs"], abs=1e5)  # updated in place


def test_documents_apart_are_compared_on_the_device() -> None:
    separated = of_step(configured(), documents=True)
    extra_bytes = separated["hbm"]["arguments"] - base()["hbm"]["arguments"]
    assert extra_bytes == pytest.approx(2 * 4 * ROWS * LENGTH, rel=0.1)
    assert separated["hlo"].count("direction=EQ") > base()["hlo"].count("direction=EQ")


def test_logits_exist_for_a_chunk_of_positions_at_a_time() -> None:
    words = 50_000
    report = of_step(
        configured(train=TrainConfig(batch_size=ROWS, precision="mixed_bfloat16")), vocabulary=words
    )
    assert report["hbm"]["temporaries"] < 0.8 * 2 * ROWS * LENGTH * words  # of all logits in bfloat16


def test_the_share_of_masked_tokens_determines_the_size_of_the_head() -> None:
    network = {
        "hidden_size": WIDTH,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 256,
    }

    def flops(share: float) -> float:
        model = ModelConfig(type="roberta", config=network)
        return of_step(configured(objective="mlm", model=model, mlm=MlmConfig(probability=share)))["flops"]

    positions = 0.25 * ROWS * LENGTH
    head = 3 * 2 * positions * WIDTH * (WIDTH + VOCABULARY)
    assert flops(0.5) - flops(0.25) == pytest.approx(head, rel=0.2)


def arguments(folder: Path, fsdp: bool | str, **rules: list[str | None]) -> int:
    """Returns the bytes of arguments on each of four devices."""
    topology = Topology.parse("v5e:2x2")
    config = configured(strategy="pjrt", mesh=MeshConfig(fsdp=fsdp, rules=rules))
    rows = rows_without_dataset(config, vocab_size=VOCABULARY, max_length=LENGTH)
    step = MeshStep(config=config, rows=rows, topology=topology, cache=LoweringCache(folder))
    return compile_module(step.program(ROWS // 4).lower(), topology).arguments


def test_zero_divides_the_optimizer_and_a_rule_excludes_a_variable(tmp_path: Path) -> None:
    undivided, zero = arguments(tmp_path, False), arguments(tmp_path, "zero")
    assert zero == pytest.approx(undivided * (1 + 2 / 4) / 3, rel=0.15)
    table = 4 * VOCABULARY * WIDTH
    extra_bytes = arguments(tmp_path, "zero", **{"embeddings.tokens.weight": [None, None]}) - zero
    assert extra_bytes == pytest.approx(2 * table * 3 / 4, rel=0.2)
