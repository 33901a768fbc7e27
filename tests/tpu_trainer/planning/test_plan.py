"""The plan of a run: from a dataset or an estimate to hours and dollars."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.tpu_trainer.tiny import sequences, write_split
from tests.tpu_trainer.tpu_check.test_hlo import HLO
from tpu_trainer.config import (
    CompileCheckConfig,
    DataConfig,
    MeshConfig,
    MlmConfig,
    ModelConfig,
    OptimizerConfig,
    PlanConfig,
    TrainConfig,
)
from tpu_trainer.planning.prices import PRICES
from tpu_trainer.support.chips import Topology
from tpu_trainer.support.errors import UsageError
from tpu_trainer.tpu_check.cache import Cache
from tpu_trainer.tpu_check.check import StepCheck
from tpu_trainer.tpu_check.compiler import Executable, OutOfMemory
from tpu_trainer.verbs.plan import main

GPT2 = ModelConfig(type="gpt2")


@pytest.fixture
def estimate(tmp_path: Path) -> str:
    """As `prepare --estimate --json` prints it: 10 billion tokens in rows of 1000 of 1024 slots, ± 1%."""
    path = tmp_path / "estimate.json"
    split = {"tokens": 10**10, "rows": 10**7, "shards": 10, "bytes": 10**10}
    shape = {"max_length": 1024, "vocab_size": 50_257}
    path.write_text(json.dumps({"token_error": 0.005, "splits": {"train": split}, **shape}))
    return str(path)


def plan(capsys: pytest.CaptureFixture[str], **options: Any) -> dict[str, Any]:
    options.setdefault("train", TrainConfig(steps=10_000, batch_size=100))
    main(PlanConfig(**{"objective": "clm", "model": GPT2, "json": True} | options))
    return json.loads(capsys.readouterr().out)


def test_a_plan_of_an_estimate(estimate: str, capsys: pytest.CaptureFixture[str]) -> None:
    figures = plan(capsys, estimate=estimate, topology="v5e:2x4")
    corpus, model, [(name, cost)] = figures["corpus"], figures["model"], figures["costs"].items()
    assert corpus["read_tokens"] == 10**9 and corpus["margin"] == 0.01
    assert corpus["steps_of_an_epoch"] == 100_000
    # Positions, 12 layers, the final norm; the output matrix is the embeddings'.
    width, vocabulary = 768, 50_304
    parameters = (vocabulary + 1024) * width + 12 * (12 * width**2 + 13 * width) + 2 * width
    assert model["parameters"] == parameters
    # 6 operations for each weight of a product and token, and the attention's.
    products = parameters - (1024 * width + 12 * 13 * width + 2 * width)
    attention = 12 * 12 * 1024 * width
    assert model["flops"] == pytest.approx((6 * products + attention) * 1024 * 10**6)
    assert name == "v5e:2x4" and cost["count"] == 8
    assert cost["hours"] == pytest.approx([model["flops"] / (8 * 197e12 * mfu) / 3600 for mfu in (0.6, 0.3)])
    assert cost["dollars"] == pytest.approx([hours * 8 * PRICES["v5e"] for hours in cost["hours"]])
    value, low, high = figures["scaling"]["loss"]
    assert 3 < low <= value <= high < 4
    once = figures["scaling"]["best_size_for_the_corpus_read_once"]
    assert once == sorted(once) or once[1] <= once[0] <= once[2]


def test_the_parameters_are_the_published_number(estimate: str, capsys: pytest.CaptureFixture[str]) -> None:
    figures = plan(capsys, estimate=estimate)
    padding = 50_304 - 50_257
    assert figures["model"]["parameters"] == 124_439_808 + padding * 768


def test_a_plan_of_a_dataset(
    tmp_path: Path, tokenizer_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = write_split(tmp_path / "data" / "train", sequences(80, 0), tokenizer=tokenizer_folder)
    figures = plan(
        capsys,
        data=DataConfig(train=str(train)),
        train=TrainConfig(steps=15, batch_size=16),
    )
    assert figures["corpus"]["unique_tokens"] == 80 * 16 and figures["corpus"]["margin"] == 0
    assert figures["corpus"]["read_tokens"] == 240 * 16
    assert 2.7 * 1280 < figures["corpus"]["effective_tokens"] < 3 * 1280
    assert figures["stages"][0]["end_step"] == 15
    assert "scaling" not in figures and "10M parameters or more" in " ".join(figures["assumptions"])
    assert set(figures["costs"]) == set(PRICES)


def test_masked_models_and_experts_have_no_law(estimate: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(PlanConfig(estimate=estimate, mlm=MlmConfig(), model=ModelConfig(type="roberta"), json=True))
    figures = json.loads(capsys.readouterr().out)
    assert "scaling" not in figures and "causal" in " ".join(figures["assumptions"])
    experts = ModelConfig(type="olmoe", config={"num_experts": 8})
    main(PlanConfig(estimate=estimate, objective="clm", model=experts, json=True))
    assert "dense" in " ".join(json.loads(capsys.readouterr().out)["assumptions"])


SMALL: dict[str, Any] = {
    "model": ModelConfig(type="gpt2", config={"n_embd": 64, "n_layer": 2, "n_head": 2}),
    "train": TrainConfig(steps=10_000, batch_size=80),
}


def write_report(path: Path, **options: Any) -> str:
    """Writes the report of compile-check for GPT-2 on 8 chips, as if the compiler had returned a small program."""
    fits = options.pop("fits", True)
    given: dict[str, Any] = {"data": DataConfig(train=""), "topology": "v5e:2x4"} | SMALL | options
    if not given["data"].train:
        given |= {"vocab_size": 50_257, "max_length": 1024}
    config = CompileCheckConfig(objective="clm", **given)
    result = Executable(
        arguments=1, outputs=1, aliased=1, temporaries=1, code=1, flops=1e12, bytes_accessed=1e9, hlo=HLO
    )
    if not fits:
        result = OutOfMemory(needed=2e10, available=1e10)
    check = StepCheck(config, topology=Topology.parse(config.topology), cache=Cache(folder=path.parent))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StepCheck, "_compile", lambda self, rows: (result, "", []))
        report = check.report(check.configured_rows())
    path.write_text(json.dumps({"versions": {}, "reports": [{"name": "a"} | report]}))
    return str(path)


def test_a_report_bounds_the_time(estimate: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = write_report(tmp_path / "report.json")
    [seconds] = [
        each["roofline"]["least_step_seconds"] for each in json.loads(Path(report).read_text())["reports"]
    ]
    figures = plan(capsys, estimate=estimate, report=report, **SMALL)
    assert figures["costs"]["v5e:2x4"]["hours"][0] == pytest.approx(10_000 * seconds / 3600)
    for options, reason in (
        ({"report": report, "topology": "v5e:4x4"}, "of v5e:2x4, but --topology is v5e:4x4"),
        ({"report": write_report(tmp_path / "full.json", fits=False)}, "does not fit"),
        ({"report": estimate}, "not what `compile-check --output` writes"),
        ({"report": str(tmp_path / "absent")}, "there is no such file"),
    ):
        with pytest.raises(UsageError, match=reason):
            plan(capsys, estimate=estimate, **SMALL | options)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"train": {"precision": "mixed_bfloat16"}},
            "--train.precision: 'float32' in the report, but 'mixed_bfloat16'",
        ),
        ({"train": {"recompute": "all"}}, "--train.recompute: 'nothing' in the report, but 'all' here"),
        ({"train": {"accumulation": 2}}, "--train.accumulation: 1 in the report, but 2 here"),
        ({"train": {"batch_size": 160}}, "--train.batch_size: 80 in the report, but 160 here"),
        ({"train": {"z_loss": 1e-4}}, "--train.z_loss: 'off' in the report, but 'on' here"),
        (
            {"optimizer": OptimizerConfig(name="lion")},
            "--optimizer.name: 'adamw' in the report, but 'lion' here",
        ),
        ({"strategy": "pjrt"}, "--strategy: 'another than pjrt' in the report, but 'pjrt' here"),
        ({"model": {"n_layer": 3}}, "layers of the model: 2 in the report, but 3 here"),
        ({"model": {"n_inner": 65}}, "size of mlp of the model: 256 in the report, but 65 here"),
    ],
)
def test_a_report_of_another_step_is_refused_with_both_values(
    changed: dict[str, Any], message: str, estimate: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = write_report(tmp_path / "report.json")
    options = SMALL | {name: value for name, value in changed.items() if name not in SMALL}
    if "train" in changed:
        options["train"] = replace(SMALL["train"], **changed["train"])
    if "model" in changed:
        options["model"] = replace(SMALL["model"], config=SMALL["model"].config | changed["model"])
    with pytest.raises(UsageError, match=message):
        plan(capsys, estimate=estimate, report=report, **options)


def test_a_report_of_a_mesh_or_of_fewer_sources_is_refused(
    tmp_path: Path, tokenizer_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [
        str(write_split(tmp_path / name / "train", sequences(80, seed), tokenizer=tokenizer_folder))
        for seed, name in enumerate("ab")
    ]
    one, two = (DataConfig(train=train) for train in (folders[0], dict.fromkeys(folders, 1.0)))
    pjrt: dict[str, Any] = SMALL | {"strategy": "pjrt", "data": one, "mesh": MeshConfig(fsdp=True)}
    report = write_report(tmp_path / "report.json", **pjrt)
    plan(capsys, report=report, **pjrt)
    plan(capsys, report=report, **pjrt | {"mesh": MeshConfig(data=8, fsdp=True)})
    for options, message in (
        ({"mesh": MeshConfig(fsdp="zero")}, "--mesh.fsdp: True in the report, but 'zero' here"),
        ({"mesh": MeshConfig(fsdp=True, model=2)}, "--mesh.data: 8 in the report, but 4 here"),
        ({"data": two}, "sources: 1 in the report, but 2 here"),
    ):
        with pytest.raises(UsageError, match=message):
            plan(capsys, report=report, **pjrt | options)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"topology": "H100:none"}, "give the number of GPUs"),
        ({"topology": "v5e:2"}, "needs 2 sides"),
        ({"topology": "H200:8"}, "did you mean H100"),
        ({"prices": {"v5": 1.0}}, "did you mean"),
        ({"prices": {"v5e": 0.0}}, "above 0"),
        ({"mfu": (0.6, 0.3)}, "ascending"),
        ({"data": DataConfig(train="data/train")}, "--data.train has the tokens"),
        ({"estimate": None}, "give datasets, or --estimate"),
        ({"estimate": "absent.json"}, "there is no such file"),
    ],
)
def test_what_a_plan_refuses(
    options: dict[str, Any], reason: str, estimate: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError, match=reason):
        plan(capsys, **{"estimate": estimate} | options)


def test_a_damaged_estimate_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "estimate.json"
    for text in (
        "",
        "[]",
        "{}",
        '{"splits": {}, "token_error": 0}',
        '{"splits": {"train": {"tokens": 0, "rows": 1}}}',
    ):
        path.write_text(text)
        with pytest.raises(UsageError, match="not what `tokenmill prepare --estimate --json` prints"):
            plan(capsys, estimate=str(path))


def test_prices_override_the_table_and_text_shows_them(
    estimate: str, capsys: pytest.CaptureFixture[str]
) -> None:
    train = TrainConfig(steps=10_000, batch_size=100)
    main(PlanConfig(objective="clm", model=GPT2, estimate=estimate, train=train, prices={"v5e": 0.5}))
    text = capsys.readouterr().out
    assert "one v5e at $0.50" in text and "except v5e (--prices)" in text
    assert "± 1.0%" in text and "100,000 steps an epoch" in text


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"max_length": None}, "rows are whole documents"),
        ({"max_length": 512}, "cannot be in 10,000,000 rows of 512"),
        ({"splits": {"a": {"tokens": 1, "rows": 1}, "b": {"tokens": 1, "rows": 1}}}, "the splits are a, b"),
    ],
)
def test_an_estimate_of_other_rows_is_refused(
    changes: dict[str, Any], reason: str, estimate: str, capsys: pytest.CaptureFixture[str]
) -> None:
    content = json.loads(Path(estimate).read_text())
    Path(estimate).write_text(json.dumps(content | changes))
    with pytest.raises(UsageError, match=reason):
        plan(capsys, estimate=estimate)


def test_an_unknown_error_is_no_margin(estimate: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path(estimate).write_text(json.dumps(json.loads(Path(estimate).read_text()) | {"token_error": None}))
    figures = plan(capsys, estimate=estimate)
    assert figures["corpus"]["margin"] is None and "how far they may be off" in figures["assumptions"][0]
