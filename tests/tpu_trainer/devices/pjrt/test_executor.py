"""Steps by PJRT, on CPU devices: every plan gives TensorFlow's losses and weights."""

from __future__ import annotations

import io
import json
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.tpu_trainer import cpu_devices
from tests.tpu_trainer.pjrt_plans import CASES, PLANS
from tests.tpu_trainer.step_digests import CONFIGS, step_digest
from tests.tpu_trainer.tiny import MAX_LENGTH, sequences, write_split
from tpu_trainer.config import MeshConfig
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.devices.pjrt.lowering_cache import LoweringCache
from tpu_trainer.devices.pjrt.mesh import DeviceMesh
from tpu_trainer.devices.pjrt.stablehlo import Lowered, Program
from tpu_trainer.support.errors import UsageError

# In float32. The order of sums differs between plans.
TOLERANCE = 1e-5


@pytest.fixture(scope="module", params=["some", pytest.param("all", marks=pytest.mark.wide)])
def report(
    request: pytest.FixtureRequest, tokenizer_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """The results of pjrt_plans.py on rows of two documents."""
    dataset = tmp_path_factory.mktemp("documents")
    for name, count in (("train", 120), ("validation", 20)):
        rows = sequences(count, seed=len(name))
        mask = np.ones_like(rows)
        rows[-1, 8:], mask[-1, 8:] = 1, 0
        segments = np.broadcast_to(np.arange(MAX_LENGTH) >= 9, rows.shape).astype(np.int64)
        positions = np.where(segments > 0, np.arange(MAX_LENGTH) - 9, np.arange(MAX_LENGTH))
        write_split(
            dataset / name,
            rows,
            tokenizer=tokenizer_folder,
            attention_mask=mask,
            position_ids=positions,
            segment_ids=segments,
        )
    result = cpu_devices.run_module("pjrt_plans", dataset, tmp_path_factory.mktemp("cache"), request.param)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


@pytest.mark.parametrize("case", [case for case in CASES if case != "bfloat16"])
def test_every_plan_trains_like_tensorflow(report: dict[str, Any], case: str) -> None:
    assert report[case]["final"] != report[case]["first"]  # the weights change
    for plan, differences in report[case]["plans"].items():
        print(f"{case}, {plan}: {differences}")
        assert differences["losses"] < TOLERANCE, plan
        assert differences["sources"] < 20 * TOLERANCE, plan  # sums of a row's tokens
        assert differences["state"] < TOLERANCE, (plan, differences["worst"])
        assert differences["average"] < TOLERANCE, plan


def test_mixed_precision_trains_like_tensorflow_up_to_its_rounding(report: dict[str, Any]) -> None:
    for differences in report["bfloat16"]["plans"].values():
        assert 0 <= differences["losses"] < 0.01
        assert differences["state"] < 0.1, differences["worst"]


def test_plans_with_as_many_groups_of_devices_share_a_lowered_program(report: dict[str, Any]) -> None:
    hits, misses = report["cache"]
    plans_by_case = [report[case]["plans"].keys() for case in CASES]
    shapes_by_case = [{tuple(PLANS[plan].sizes.values()) for plan in plans} for plans in plans_by_case]
    # Optimizers of one model have the same program to evaluate.
    evaluated = {
        (str(case.model), case.train.precision, shape)
        for case, shapes in zip(CASES.values(), shapes_by_case, strict=True)
        for shape in shapes
    }
    assert misses == sum(map(len, shapes_by_case)) + len(evaluated)
    assert hits + misses == 2 * sum(map(len, plans_by_case))


def test_another_process_with_another_past_has_the_same_hashes_of_steps(
    report: dict[str, Any], vocabulary: Vocabulary
) -> None:
    assert report["digests"] == {name: step_digest(config, vocabulary) for name, config in CONFIGS.items()}


def test_a_damaged_or_unwritable_cache_does_not_matter(
    vocabulary: Vocabulary, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("jax")
    specs = {"x": tf.TensorSpec([4], tf.float32)}
    variable = tf.Variable(1.0)

    def function(batch: dict[str, tf.Tensor]) -> tf.Tensor:
        return tf.reduce_sum(variable.assign_add(1.0) * batch["x"])

    first = LoweringCache(tmp_path).lower(Program(function, specs))
    assert first.aliases == {1: 1}
    cache = LoweringCache(tmp_path)
    assert cache.lower(Program(function, specs)) == first
    assert (cache.hits, cache.misses) == (1, 0)
    (path,) = tmp_path.iterdir()
    entry = path.read_bytes()
    other_archive = io.BytesIO()
    with zipfile.ZipFile(other_archive, "w") as archive:
        archive.writestr("signature.json", "[]")
        archive.writestr("program.mlirbc", b"")
    garbled_entries = [
        entry[:offset] + bytes(32) + entry[offset + 32 :] for offset in range(0, len(entry) - 32, 97)
    ]
    damaged_entries = [b"", entry[:100], other_archive.getvalue(), *garbled_entries]
    for number, data in enumerate(damaged_entries, 1):
        path.write_bytes(data)
        # TensorFlow's names of functions, which differ, are in the artifact.
        assert cache.lower(Program(function, specs)).arguments == first.arguments
        assert (cache.hits, cache.misses) == (1, number)
    assert "the program is lowered again" in caplog.text
    # Another constant is another program.
    assert Program(lambda batch: 2 * function(batch), specs).digest() != Program(function, specs).digest()
    (tmp_path / "file").write_text("")
    assert LoweringCache(tmp_path / "file").lower(Program(function, specs)).aliases == first.aliases
    assert "cannot be written" in caplog.text
    assert sorted(tmp_path.iterdir()) == sorted([path, tmp_path / "file"])


def test_any_damaged_bit_of_a_cached_program_makes_it_lowered_again(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    lowered = Lowered(
        artifact=bytes(range(256)) * 4, arguments=(((4,), "float32"),), results=(((), "float32"),), aliases={}
    )
    program = SimpleNamespace(digest=lambda: "", lower=lambda: lowered)
    cache = LoweringCache(tmp_path)
    cache.lower(program)
    (path,) = tmp_path.iterdir()
    data = path.read_bytes()
    for bit in np.random.default_rng(0).permutation(8 * len(data))[:2000].tolist():
        damaged_data = bytearray(data)
        damaged_data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged_data)
        assert cache.lower(program) == lowered


def test_a_mesh_that_is_larger_than_the_machine_is_rejected() -> None:
    pytest.importorskip("jax")
    with pytest.raises(
        UsageError, match=r"--mesh.data 4 times --mesh.model 2 are 8 devices, but JAX finds 1"
    ):
        DeviceMesh(MeshConfig(data=4, model=2))


def test_processes_with_different_numbers_of_devices_are_rejected() -> None:
    pytest.importorskip("jax")
    devices = [SimpleNamespace(platform="gpu", device_kind="x", process_index=number) for number in (0, 1, 1)]
    with pytest.raises(UsageError, match="process 0 has 1 and process 1 2"):
        DeviceMesh(MeshConfig(), devices)


def test_without_jax_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(UsageError, match=r"needs the package jax .*install tokenmill-trainer\[pjrt\]"):
        DeviceMesh(MeshConfig())
