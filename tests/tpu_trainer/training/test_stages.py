"""Runs whose mixture changes from stage to stage."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.tpu_trainer.small_runs import fit_arguments, learnt, metrics, weights
from tests.tpu_trainer.tiny import sequences, write_split
from tests.tpu_trainer.training.test_loop import NumpyExecutor
from tpu_trainer.config import DataConfig, FitConfig, TrainConfig
from tpu_trainer.config.stages import Stage
from tpu_trainer.data.batches import RowStream
from tpu_trainer.data.mixture import describe, open_data
from tpu_trainer.data.plan import DataPlan
from tpu_trainer.runs.checkpoint import Checkpoints
from tpu_trainer.runs.run_folder import RunFolder
from tpu_trainer.support.errors import UsageError
from tpu_trainer.training.progress import ModelFigures
from tpu_trainer.training.run import Run

BATCH = 10


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, tokenizer_folder: Path) -> dict[str, str]:
    """Splits of 60, 40 and 20 rows."""
    root = tmp_path_factory.mktemp("stages")
    return {
        name: str(
            write_split(
                root / name / "train", sequences(rows, rows), tokenizer=tokenizer_folder, shard_rows=8
            )
        )
        for name, rows in {"a": 60, "b": 40, "c": 20}.items()
    }


def config_of(folders: dict[str, str], *stages: tuple[Any, dict[str, float]], **train: Any) -> FitConfig:
    """Three rows of a for each of b; then these stages, whose weights have short names."""
    options = {"steps": 30, "batch_size": BATCH, "tensorboard": False, "checkpoint_every": 5} | train
    return FitConfig(
        output_dir="unused",
        data=DataConfig(
            train={folders["a"]: 3, folders["b"]: 1},
            stages=[
                {"from": start, "weights": {folders[name]: weight for name, weight in weights.items()}}
                for start, weights in stages
            ],
        ),
        train=TrainConfig(**options),
    )


def stream_of(config: FitConfig) -> RowStream:
    train = config.train
    return RowStream(
        data=open_data(config),
        batch_size=train.batch_size,
        seed=config.seed,
        window_shards=2,
        micro_batch_starts=train.micro_batch_starts,
    )


def train(config: FitConfig, path: Path) -> tuple[Run, NumpyExecutor]:
    """Trains to the last step of `config`, from the newest checkpoint in `path`."""
    executor = NumpyExecutor()
    run = Run(
        config,
        folder=RunFolder(str(path)),
        rows=stream_of(config),
        executor=executor,
        evaluators={},
        baselines={},
        model=ModelFigures(parameters=3, flops_per_row=1.0, peak_flops=None, speed=None),
    )
    run.train()
    return run, executor


@pytest.mark.parametrize(
    ("start", "steps"),
    [(18, 18), ("60%", 18), ("60.5 %", 18), ("2880 tokens", 18), ("2.881K tokens", 19), ("3e3 tokens", 19)],
)
def test_a_stage_begins_with_its_step_share_or_token(
    folders: dict[str, str], start: int | str, steps: int
) -> None:
    stream = stream_of(config_of(folders, (start, {"c": 1, "b": 1})))
    rows = [stream.rows(step) for step in range(30)]
    assert all(step.max() < 100 for step in rows[:steps])
    assert all(step.min() >= 60 and (step >= 100).sum() == 5 for step in rows[steps:])
    assert stream.rows_read(30).tolist() == [
        int(((np.ravel(rows) >= 0) & (np.ravel(rows) < 60)).sum()),
        int(((np.ravel(rows) >= 60) & (np.ravel(rows) < 100)).sum()),
        (30 - steps) * 5,
    ]
    shares = [entry["share"] for entry in describe(stream.data, stream.rows_read(30), {})]
    assert sum(shares) == pytest.approx(1) and shares[2] == pytest.approx((30 - steps) / 60)


def test_each_row_is_read_once_in_an_epoch_over_stages_and_a_growing_batch(folders: dict[str, str]) -> None:
    config = config_of(
        folders, (7, {"c": 3, "b": 2}), (12, {"a": 1, "c": 1}), batch_size=12, accumulation=4, batch_ramp=8
    )
    stream = stream_of(config)
    read = np.concatenate([stream.rows(step) for step in range(40)])
    read = read[read >= 0]
    assert read.size == config.train.rows_before(40) == stream.rows_read(40).sum()
    for first, count in ((0, 60), (60, 40), (100, 20)):
        times = np.bincount(read, minlength=120)[first : first + count]
        assert times.max() - times.min() <= 1
    assert all((stream.rows(step) >= 100).any() == (step >= 7) for step in range(40))


def test_a_run_continues_across_stages_and_with_other_later_ones(
    folders: dict[str, str], tmp_path: Path
) -> None:
    first = config_of(folders, (12, {"c": 1, "a": 1}), (25, {"c": 1}))
    whole = train(first, tmp_path / "whole")[1].values["weights"]
    # In the middle of the second stage.
    train(replace(first, train=replace(first.train, steps=16)), tmp_path / "run")
    resumed, executor = train(first, tmp_path / "run")
    assert resumed.first_step == 16
    np.testing.assert_array_equal(executor.values["weights"], whole)

    # The third stage had not begun at step 16: it can begin elsewhere, with other data.
    other = config_of(folders, (12, {"c": 1, "a": 1}), (16, {"b": 1, "a": 1}), (20, {"a": 1}))
    train(replace(other, train=replace(other.train, steps=16)), tmp_path / "other")
    assert train(other, tmp_path / "other")[0].first_step == 16
    expected = train(other, tmp_path / "expected")[1].values["weights"]
    checkpoints = Checkpoints(str(tmp_path / "other" / "checkpoints"))
    stored = dict(checkpoints.read(30, {"weights": (3,)}))["weights"]
    np.testing.assert_array_equal(stored[...], expected)


def test_what_was_read_cannot_change(folders: dict[str, str], tmp_path: Path) -> None:
    config = config_of(folders, ("50%", {"c": 1, "a": 1}), steps=20)
    train(config, tmp_path)
    for changed in (
        config_of(folders, (10, {"c": 1, "a": 2})),
        config_of(folders, (9, {"c": 1, "a": 1})),
        config_of(folders, (10, {"c": 1, "a": 1}), (19, {"b": 1})),
        config_of(folders, ("50%", {"c": 1, "a": 1})),  # of more steps
        config_of(folders),
    ):
        with pytest.raises(
            UsageError, match=r"not the data that the 20 steps .* keep .* a stage \{from: 20, weights"
        ):
            train(changed, tmp_path)
    continued, _ = train(config_of(folders, (10, {"c": 1, "a": 1}), (20, {"b": 1})), tmp_path)
    assert continued.first_step == 20


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        ({"from": 0, "weights": "a"}, "a later stage is from a step above 0"),
        ({"from": 2.5, "weights": "a"}, "a later stage is from a step above 0"),
        ({"from": True, "weights": "a"}, "a later stage is from a step above 0"),
        ({"from": "100%", "weights": "a"}, "a later stage is from a step above 0"),
        ({"from": "2B", "weights": "a"}, "a later stage is from a step above 0"),
        ({"from": 3}, "has `from` and `weights`"),
        ({"from": 3, "weight": {"a": 1}}, "has `from` and `weights`"),
        ({"from": 3, "weights": {}}, "name at least one folder"),
        ({"from": 3, "weights": 3}, "name at least one folder"),
        ({"from": 3, "weights": ["a", "a"]}, "a folder is repeated"),
        ({"from": 3, "weights": ["a", "./a/"]}, "a folder is repeated"),
        ({"from": 3, "weights": {"a": 0}}, "weights must be positive numbers"),
        ({"from": 3, "weights": {"a": "1"}}, "weights must be positive numbers"),
    ],
)
def test_stages_that_are_none(stage: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Stage.parse(stage)
    with pytest.raises(UsageError, match=message):
        DataConfig(train="a", stages=[stage])


def test_stages_must_ascend(folders: dict[str, str]) -> None:
    with pytest.raises(
        UsageError, match=r"--data.stages: they begin at the steps \[15, 15\], which must ascend"
    ):
        open_data(config_of(folders, ("50%", {"c": 1}), (15, {"a": 1})))


def test_the_plan_counts_what_the_steps_read(folders: dict[str, str]) -> None:
    config = config_of(
        folders,
        (7, {"c": 3, "b": 2}),
        ("50%", {"a": 1, "c": 1}),
        (90, {"b": 1}),
        batch_size=12,
        accumulation=4,
        batch_ramp=8,
        steps=80,
    )
    stream, plan = stream_of(config), DataPlan(config, open_data(config))
    figures = plan.to_json()
    assert [(stage["first_step"], stage["end_step"]) for stage in figures["stages"]] == [
        (0, 7),
        (7, 40),
        (40, 80),
    ]
    for stage in [*figures["stages"], {"first_step": 0, "end_step": 80, "sources": figures["sources"]}]:
        rows = np.concatenate([stream.rows(step) for step in range(stage["first_step"], stage["end_step"])])
        for (name, source), (first, count) in zip(
            stage["sources"].items(), ((0, 60), (60, 40), (100, 20)), strict=True
        ):
            read = int(((rows >= first) & (rows < first + count)).sum())
            assert name == f"{'abc'[first // 50]}/train"
            assert source == {"rows": read, "tokens": 16 * read, "epochs": read / count}
    lines = list(plan.lines())
    first_rows = figures["stages"][0]["sources"]["a/train"]["rows"]
    assert lines[1].split()[:5] == ["1", "to", "7", "a/train", str(first_rows)]
    assert "the stage from step 90 on begins after the last step" in lines
    warned = [line.split(" is read ") for line in lines if " is read " in line]
    epochs = {name: source["epochs"] for name, source in figures["sources"].items() if source["epochs"] > 4}
    assert [(name, text.split()[0]) for name, text in warned] == [
        (name, f"{times:.1f}") for name, times in epochs.items()
    ]
    assert "c/train" in epochs


def test_sources_have_their_figures_also_if_a_continued_run_has_more(
    folders: dict[str, str],
    tmp_path: Path,
    run_verb: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    names = {name: f"{name}/train" for name in "abc"}
    later = json.dumps([{"from": 6, "weights": {folders["c"]: 1, folders["a"]: 1}}])
    options = {
        "config": "tiny-clm",
        "model.config": '{"n_embd": 16, "n_layer": 1, "n_head": 2}',
        "data.train": json.dumps({folders["a"]: 3, folders["b"]: 1}),
        "data.validation": "null",
        "train.batch_size": BATCH,
        "train.log_every": 4,
        "schedule.name": "constant",
        "schedule.warmup_steps": 1,
    }
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    runs = ((whole, 10, later), (parts, 5, "[]"), (parts, 10, later))
    for run, steps, stages in runs:
        arguments = fit_arguments(tmp_path, run, options | {"train.steps": steps, "data.stages": stages})
        assert run_verb(*arguments) == 0
    shown = capsys.readouterr().err
    assert "fit: 7 to 10" in shown and "fit: c/train: 320 tokens, 1.00 epochs, training loss" in shown

    # The second process has another array of sums than its checkpoint, and continues exactly.
    values, expected = weights(parts), weights(whole)
    assert all(np.array_equal(values[name], expected[name]) for name in expected)
    summaries = [json.loads((run / "summary.json").read_text())["sources"] for run in (whole, parts)]
    for summary in summaries:
        assert list(summary) == list(names.values())
        assert sum(source["rows"] for source in summary.values()) == 100
        assert all(source["tokens"] == 16 * source["rows"] for source in summary.values())
        assert summary["c/train"]["rows"] == 20 and summary["c/train"]["epochs"] == 1
    records = metrics(whole)
    assert [list(record["sources"]) for record in records] == [["a/train", "b/train"]] * 2 + [
        [*names.values()],
        ["a/train", "c/train"],
    ]
    for record in records:
        losses = [source["loss"] for source in record["sources"].values()]
        assert min(losses) <= record["loss"] <= max(losses)
    assert learnt(metrics(parts))[:2] == learnt(records)[:2]
    assert metrics(parts)[-1]["sources"]["c/train"] == records[-1]["sources"]["c/train"]
    entries = json.loads((whole / "data.json").read_text())
    assert [entry["share"] for entry in entries] == pytest.approx([0.65, 0.15, 0.2], abs=0.02)
    tags = {
        value.tag
        for file in (whole / "tensorboard").glob("events*")
        for event in tf.compat.v1.train.summary_iterator(str(file))
        for value in event.summary.value
    }
    assert {"sources/a/train/loss", "sources/c/train/epochs", "train/loss"} <= tags
