"""Tests of the attention kernel's callers. tests/tpu_check tests the kernel itself, which needs JAX."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.tpu_trainer import kernel_reference
from tests.tpu_trainer.small_runs import fit_arguments, metrics
from tests.tpu_trainer.tiny import write_split
from tpu_trainer.__main__ import main
from tpu_trainer.config import DataConfig, FitConfig, ModelConfig, Recompute, TrainConfig
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.devices.devices import Target
from tpu_trainer.devices.tensorflow import devices
from tpu_trainer.network import attention_kernel
from tpu_trainer.network.architecture import Architecture, Attention, LayerKind, Mlp, Norm
from tpu_trainer.network.kernel_check import check_attention_kernel
from tpu_trainer.network.kernels import Kernel
from tpu_trainer.step.task import Task
from tpu_trainer.support.errors import UsageError
from tpu_trainer.training.build import build_task

LENGTH = 128
ARCHITECTURE = Architecture(
    vocabulary=50,
    width=256,
    causal=True,
    attention=Attention(heads=4, key_heads=4, head_size=64, scale=0.125),
    mlp=Mlp(size=24, activation="gelu"),
    norm=Norm(kind="layer", epsilon=1e-5),
    kinds=(LayerKind(),),
)
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "roberta": (
        "mlm",
        {
            "hidden_size": 256,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 24,
            "attention_probs_dropout_prob": 0.3,
        },
    ),
    "gpt2": ("clm", {"n_embd": 256, "n_layer": 2, "n_head": 4, "attn_pdrop": 0.3}),
}


def config_of(model_type: str, **model: Any) -> FitConfig:
    objective, values = MODELS[model_type]
    return FitConfig(
        output_dir="",
        data=DataConfig(train=""),
        objective=objective,
        model=ModelConfig(type=model_type, config=values | model),
        train=TrainConfig(attention_kernel=True),
    )


def task_of(config: FitConfig, vocabulary: Vocabulary, *, tpu: str | None, length: int = LENGTH) -> Task:
    return build_task(
        config,
        vocabulary=vocabulary,
        max_length=length,
        target=Target(kernel_generation=tpu),
    )


@pytest.mark.parametrize(
    ("model_type", "recompute"),
    [("roberta", "nothing"), pytest.param("gpt2", "attention", marks=pytest.mark.wide), ("gpt2", "all")],
)
def test_loss_and_gradient_equal_those_of_the_models_attention(
    model_type: str, recompute: Recompute, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def run(name: str, causal: bool, *operands: tf.Tensor) -> list[tf.Tensor]:
        calls.append((name, causal))
        return kernel_reference.run(name, causal, *operands)

    monkeypatch.setattr(attention_kernel, "_run", run)
    config = config_of(model_type)
    ids = np.random.default_rng(0).integers(5, 50, size=(3, LENGTH)).astype(np.int32)
    mask = np.ones_like(ids)
    ids[2, 70:], mask[2, 70:] = 1, 0
    batch = {"input_ids": tf.constant(ids), "attention_mask": tf.constant(mask), "row": tf.range(3)}
    if model_type == "gpt2":  # several documents in a row
        batch["segment_ids"] = tf.constant(
            np.sort(np.random.default_rng(1).integers(0, 3, ids.shape)), tf.int32
        )
    results = []
    for kernel in (False, True):
        train = TrainConfig(attention_kernel=kernel, recompute=recompute)
        kernel_config = replace(config, train=train)
        task = task_of(kernel_config, vocabulary, tpu="v5e")
        sums, gradients = tf.function(task.gradients, jit_compile=True)(batch, tf.constant(3, tf.int64))
        results.append(([float(value) for value in sums], [gradient.numpy() for gradient in gradients]))
        assert bool(calls) == kernel
    assert set(calls) == {(name, model_type == "gpt2") for name in ("forward", "backward")}
    (sums, gradients), (other_sums, other_gradients) = results
    np.testing.assert_allclose(other_sums, sums, rtol=1e-5)
    for gradient, other_gradient in zip(gradients, other_gradients, strict=True):
        np.testing.assert_allclose(
            other_gradient, gradient, rtol=1e-3, atol=1e-5 * max(1, np.abs(gradient).max())
        )
    # Evaluation does not use the kernel.
    before = len(calls)
    task.evaluation_sums(batch)
    assert len(calls) == before


def test_without_a_tpu_attention_is_recomputed(vocabulary: Vocabulary) -> None:
    computation = task_of(config_of("roberta"), vocabulary, tpu=None).objective.model.computation
    assert (computation.recompute, computation.kernel) == ("attention", None)


@pytest.mark.parametrize(
    ("model_type", "values", "length", "message"),
    [
        (
            "roberta",
            {"num_attention_heads": 8},
            128,
            "the model's heads have 32 dimensions, but the kernel's 64",
        ),
        (
            "gpt2",
            {"n_embd": 192, "n_head": 3},
            128,
            "the model has 3 heads, but the kernel needs an even number",
        ),
        ("gpt2", {}, 96, "rows have 96 tokens, but there are kernels only for 128, 256, 512, 1024, 2048"),
    ],
)
def test_unsupported_shapes_are_rejected(
    model_type: str, values: dict[str, Any], length: int, message: str, vocabulary: Vocabulary
) -> None:
    with pytest.raises(UsageError, match=f"--train.attention_kernel: {message}"):
        task_of(config_of(model_type, **values), vocabulary, tpu="v5e", length=length)


def test_the_archive_has_all_kernels() -> None:
    with zipfile.ZipFile(resources.files("tpu_trainer.network") / "attention_kernels.zip") as archive:
        assert archive.testzip() is None
        assert sorted(archive.namelist()) == sorted(
            attention_kernel.member(name, dtype=dtype, causal=causal, length=length)
            for name in ("forward", "backward")
            for dtype in attention_kernel.DTYPES
            for causal in (False, True)
            for length in attention_kernel.LENGTHS
        )


def check(causal: bool, tpu: str = "v5e") -> float:
    run = devices.TensorFlowDevices(FitConfig(output_dir="", data=DataConfig(train=""))).run
    return check_attention_kernel(
        run,
        architecture=replace(ARCHITECTURE, causal=causal),
        kernel=Kernel("mosaic", attention_kernel.kernel_dtype("mixed_bfloat16", tpu)),
        dtype=tf.bfloat16,
        length=128,
    )


@pytest.mark.parametrize(("causal", "tpu"), [(False, "v3"), (True, "v5litepod")])
def test_the_check_accepts_a_correct_kernel(causal: bool, tpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    types = set()

    def run(name: str, causal: bool, *operands: tf.Tensor) -> list[tf.Tensor]:
        types.add(operands[-1].dtype)
        return kernel_reference.run(name, causal, *operands)

    monkeypatch.setattr(attention_kernel, "_run", run)
    # Above its tolerance, the check raises. The rounding of plain attention's products differs between CPUs.
    assert check(causal, tpu) > 0
    assert types == {tf.float32 if tpu == "v3" else tf.bfloat16}


def without_segments(name: str, causal: bool, *operands: tf.Tensor) -> list[tf.Tensor]:
    threshold, scale, lines, keys, *inputs = operands
    lines_of_one_segment = lines * tf.reshape([1, 1, 1, 1, 0, 1, 1, 1], [1, 1, 8, 1])
    return kernel_reference.run(
        name, causal, threshold, scale, lines_of_one_segment, keys * [[[1.0], [0.0]]], *inputs
    )


def with_heads_exchanged(name: str, causal: bool, *operands: tf.Tensor) -> list[tf.Tensor]:
    threshold, scale, lines, *inputs = operands
    order = [2, 3, 0, 1, 4, 5, 6, 7]
    return kernel_reference.run(name, causal, threshold, scale, tf.gather(lines, order, axis=2), *inputs)


def with_queries_and_keys_exchanged(name: str, causal: bool, *operands: tf.Tensor) -> list[tf.Tensor]:
    results = kernel_reference.run(name, causal, *operands)
    return results if name == "forward" else [results[1], results[0], results[2]]


def with_a_number_that_is_none(name: str, causal: bool, *operands: tf.Tensor) -> list[tf.Tensor]:
    return [result * float("nan") for result in kernel_reference.run(name, causal, *operands)]


@pytest.mark.parametrize(
    ("wrong_kernel", "difference"),
    [
        (without_segments, "output"),
        (with_heads_exchanged, "output"),
        (with_queries_and_keys_exchanged, "gradient of queries"),
        (with_a_number_that_is_none, "output"),
    ],
)
def test_the_check_rejects_a_wrong_kernel(
    wrong_kernel: Any, difference: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_kernel, "_run", wrong_kernel)
    with pytest.raises(
        UsageError,
        match=f"the kernel's {difference} differs from plain attention's by .*use --train.recompute attention",
    ):
        check(False)


def test_a_device_without_the_kernel_is_rejected() -> None:
    with pytest.raises(
        UsageError,
        match=r"this device rejects the bfloat16 kernel for rows of 128 tokens; use --train\.recompute attention",
    ):
        check(False)  # of a CPU


def test_a_run_checks_the_device_and_trains_as_without_the_kernel(
    tokenizer_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = np.random.default_rng(0).integers(5, 50, size=(48, LENGTH))
    for split in ("train", "validation"):
        write_split(tmp_path / "data" / split, rows, tokenizer=tokenizer_folder)
    losses = {}
    for kernel in (False, True):
        with monkeypatch.context() as patch:
            if kernel:  # what fit asks of a device that computes like one
                patch.setattr(devices, "is_tpu", lambda strategy: True)
                patch.setattr(attention_kernel, "_run", kernel_reference.run)
            options = {
                "model.type": "gpt2",
                "model.config.n_embd": 128,
                "model.config.n_layer": 1,
                "model.config.n_head": 2,
                "objective": "clm",
                "train.steps": 3,
                "train.batch_size": 8,
                "train.log_every": 1,
                "train.attention_kernel": str(kernel).lower(),
                "tpu.accelerator_type": "v5litepod-8",
            }
            run = tmp_path / str(kernel)
            arguments = map(str, fit_arguments(tmp_path / "data", run, options))
            patch.setattr("sys.argv", ["tpu_trainer", *arguments])
            main()
        is_reported = "the attention kernel matches plain attention on this device" in capsys.readouterr().err
        assert is_reported == kernel
        losses[kernel] = [record["loss"] for record in metrics(run) if "loss" in record]
    assert len(losses[True]) == 3
    np.testing.assert_allclose(losses[True], losses[False], rtol=1e-4)
