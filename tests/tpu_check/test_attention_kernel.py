"""The attention kernel, compared with plain TensorFlow in Pallas' interpreter, and compiled for TPUs."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax.experimental.pallas import tpu as pltpu

from tests.tpu_trainer import kernel_reference
from tpu_trainer.config import CompileCheckConfig, ModelConfig, TrainConfig
from tpu_trainer.network import attention_kernel
from tpu_trainer.network.attention_kernel import DTYPES, LENGTHS, member
from tpu_trainer.support.chips import Topology
from tpu_trainer.support.errors import UsageError
from tpu_trainer.tpu_check.compiler import BatchFunction, DoesNotCompile, Executable, compile_module
from tpu_trainer.tpu_check.figures import figures
from tpu_trainer.tpu_check.kernel_sources import bytecode, kernel
from tpu_trainer.tpu_check.step import ReplicaStep, rows_without_dataset
from tpu_trainer.verbs import compile_check

ROWS, HEADS = 2, 4
GENERATIONS = ("v4:1x1x1", "v5e:1x1", "v5p:1x1x1", "v6e:1x1")


def operands(length: int, dtype: str, arrays: int) -> list[np.ndarray]:
    """Returns random operands with dropout, padding and three documents in each row."""
    random = np.random.default_rng(0)
    lines = random.integers(0, 2**32, (ROWS, HEADS // 2, 8, length), dtype=np.uint32).view(np.int32)
    segments = np.sort(random.integers(0, 3, (ROWS, length)), axis=1)
    lines[:, :, 4] = segments[:, None]
    bias = np.zeros((ROWS, length), np.float32)
    bias[1, -9:] = -1e4
    threshold = round(0.1 * 2**32)
    return [
        np.array([threshold], np.uint32).view(np.int32),
        np.array([1 / (1 - threshold / 2**32)], np.float32),
        lines,
        np.stack([bias, segments.astype(np.float32)], axis=1),
        *random.standard_normal((arrays, ROWS, length, HEADS * 64)).astype(jnp.dtype(dtype)),
    ]


# Rows of one block, two blocks and four blocks.
@pytest.mark.parametrize("length", [128, 512, 1024])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["forward", "backward"])
def test_the_kernel_equals_plain_operations(name: str, dtype: str, causal: bool, length: int) -> None:
    values = operands(length, dtype, arrays=3 if name == "forward" else 4)
    call = kernel(
        name,
        dtype=dtype,
        causal=causal,
        length=length,
        rows=ROWS,
        blocks=HEADS // 2,
        interpret=pltpu.InterpretParams(),
    )
    output = call(*map(jnp.asarray, values))
    tensors = [*map(tf.constant, values[:4]), *(tf.constant(x.astype(np.float32)) for x in values[4:])]
    expected = kernel_reference.run(name, causal, *tensors)
    for actual, reference in zip([output] if name == "forward" else output, expected, strict=True):
        assert actual.dtype == jnp.dtype(dtype)
        largest = np.abs(reference).max()
        tolerance = 1e-5 if dtype == "float32" else 2e-2
        np.testing.assert_allclose(
            np.asarray(actual, np.float32), reference, rtol=0, atol=tolerance * largest
        )


def test_the_archive_is_compiled_from_the_source() -> None:
    # With 64-bit numbers, as after any compile for a mesh in the same process.
    with (
        zipfile.ZipFile(resources.files("tpu_trainer.network") / "attention_kernels.zip") as archive,
        jax.enable_x64(True),
    ):
        for path in archive.namelist():
            name, dtype, mask, length = path.removesuffix(".mlirbc").split("-")
            expected = bytecode(name, dtype=dtype, causal=mask == "causal", length=int(length))
            assert archive.read(path) == expected, f"{path}: run `make kernels`"
            # No source locations, which depend on the machine.
            assert b".py" not in expected
    assert len(archive.namelist()) == 2 * len(DTYPES) * 2 * len(LENGTHS)
    assert path == member(name, dtype=dtype, causal=mask == "causal", length=int(length))


def attention(dtype: str, length: int, causal: bool) -> BatchFunction:
    """Returns a program of both passes."""

    def step(batch: dict[str, tf.Tensor]) -> list[tf.Tensor]:
        call_arguments = [
            tf.constant([7]),
            tf.constant([1.1]),
            tf.zeros([ROWS, HEADS // 2, 8, length], tf.int32),
            tf.zeros([ROWS, 2, length]),
        ]
        output = attention_kernel._run("forward", causal, *call_arguments, *[batch["x"]] * 3)
        return output + attention_kernel._run("backward", causal, *call_arguments, *[batch["x"]] * 4)

    return BatchFunction(step, {"x": tf.TensorSpec([ROWS, length, HEADS * 64], dtype)})


@pytest.mark.parametrize("topology", GENERATIONS)
@pytest.mark.parametrize(("length", "causal"), [(512, False), (1024, True)])
def test_the_compiler_accepts_the_kernel_and_counts_its_flops(
    topology: str, length: int, causal: bool
) -> None:
    result = compile_module(attention("bfloat16", length, causal).lower(), Topology.parse(topology))
    assert isinstance(result, Executable)
    scores = ROWS * HEADS * length * length
    if causal:
        scores *= (1 + 2 + 3 + 4) / 4 / 4  # the four blocks see 1 to 4 quarters of the keys
    assert result.flops == pytest.approx(7 * 2 * 64 * scores, rel=0.01)
    # No array of the size of the scores is in memory.
    assert result.temporaries < scores


def test_the_longest_rows_compile() -> None:
    # v4 has the least on-chip memory of the supported generations.
    result = compile_module(attention("float32", LENGTHS[-1], True).lower(), Topology.parse("v4:1x1x1"))
    assert isinstance(result, Executable)


CONFIG = CompileCheckConfig(
    model=ModelConfig(
        type="roberta",
        config={
            "hidden_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 256,
        },
    ),
    train=TrainConfig(batch_size=16, precision="mixed_bfloat16", attention_kernel=True),
    vocab_size=1000,
    max_length=512,
)


def test_v3_computes_in_float32_because_its_kernels_lack_bfloat16_products() -> None:
    topology = Topology.parse("v3:1x1")
    with pytest.raises(DoesNotCompile, match="Mosaic"):
        compile_module(attention("bfloat16", 512, False).lower(), topology)
    rows = rows_without_dataset(CONFIG, vocab_size=CONFIG.vocab_size, max_length=CONFIG.max_length)
    module = ReplicaStep(config=CONFIG, rows=rows, topology=topology).program(8).lower()
    assert isinstance(compile_module(module, topology), Executable)


def test_rows_too_long_for_a_generation_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError,
        match=r"(?s)cannot be compiled for v3:1x1.*--train.attention_kernel: not supported on this generation",
    ):
        compile_check.main(replace(CONFIG, topology="v3:1x1", max_length=2048, cache=str(tmp_path)))


def test_the_kernel_saves_memory_traffic_in_the_trainers_step() -> None:
    topology = Topology.parse("v5e:1x1")

    def report(**options: Any) -> dict:
        fit_config = replace(CONFIG, train=replace(CONFIG.train, **options))
        rows = rows_without_dataset(
            fit_config, vocab_size=fit_config.vocab_size, max_length=fit_config.max_length
        )
        result = compile_module(
            ReplicaStep(config=fit_config, rows=rows, topology=topology).program(8).lower(), topology
        )
        return figures(result, topology=topology, replica_rows=8, max_length=512, model_flops=1.0)

    recomputed, with_kernel = report(attention_kernel=False, recompute="attention"), report()
    # Both compute scores twice.
    assert with_kernel["flops"] == pytest.approx(recomputed["flops"], rel=0.1)
    assert with_kernel["bytes_accessed"] < 0.7 * recomputed["bytes_accessed"]
    # In a loop, its FLOPs are counted for each iteration.
    assert report(accumulation=4)["flops"] == pytest.approx(with_kernel["flops"], rel=0.1)
