"""Several validation splits with names: a curve for each, and one that decides which checkpoint is the best."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import tensorflow as tf

from tests.tpu_trainer.small_runs import fit_arguments, metrics
from tests.tpu_trainer.tiny import sequences, write_split
from tpu_trainer.runs.checkpoint import Checkpoints

OPTIONS = {
    "config": "tiny-clm",
    "model.config": '{"n_embd": 16, "n_layer": 1, "n_head": 2}',
    "train.steps": 4,
    "train.batch_size": 8,
    "train.evaluate_every": 2,
    "schedule.warmup_steps": 1,
}


def test_each_split_has_its_figures(
    dataset: Path, tmp_path: Path, run_verb: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    other = write_split(tmp_path / "other/validation", sequences(30, 7), tokenizer=dataset / "tokenizer")
    folders = {"wiki": str(dataset / "validation"), "other": str(other)}
    run = tmp_path / "run"
    items = tmp_path / "items.jsonl"
    # In the language of the rows, each word follows the one before.
    items.write_text(
        "".join(
            json.dumps({"context": f"w{word} w{word + 1}", "choices": [f" w{word + 2}", " w40"], "answer": 0})
            + "\n"
            for word in range(20)
        )
    )
    data = {"data.validation": json.dumps(folders), "data.choices": items}
    assert run_verb(*fit_arguments(dataset, run, OPTIONS | data)) == 0
    evaluations = [line["eval"] for line in metrics(run) if "eval" in line]
    assert [list(each["splits"]) for each in evaluations] == [["wiki", "other"]] * 2
    last = evaluations[-1]
    assert last["choices"]["items"].keys() == {"accuracy", "accuracy_per_byte", "items"}
    assert last["choices"]["items"]["items"] == 20
    assert last == {
        "split": "wiki",
        **last["splits"]["wiki"],
        "splits": last["splits"],
        "choices": last["choices"],
    }
    assert {name: each["rows"] for name, each in last["splits"].items()} == {"wiki": 67, "other": 30}
    checkpoints = Checkpoints(str(run / "checkpoints"))
    assert checkpoints.metadata(4)["validation_loss"] == last["splits"]["wiki"]["loss"]
    shown = capsys.readouterr().err
    assert f"wiki validation loss {last['loss']:.3f}" in shown and ", other validation loss" in shown
    assert "other " in (run / "loss.svg").read_text()
    tags = {
        value.tag
        for file in (run / "tensorboard").glob("events*")
        for event in tf.compat.v1.train.summary_iterator(str(file))
        for value in event.summary.value
    }
    assert {
        "eval/wiki/loss",
        "eval/other/accuracy",
        "choices/items/accuracy",
    } <= tags and "eval/loss" not in tags

    # `evaluate` finds the same figures, alone or together.
    assert run_verb("evaluate", "--run", run, "--strategy", "cpu") == 0
    capsys.readouterr()
    together = json.loads((run / "evaluation.json").read_text())
    assert together["data"] == folders
    for name, folder in folders.items():
        assert run_verb("evaluate", "--run", run, "--data", folder, "--strategy", "cpu") == 0
        alone = json.loads(capsys.readouterr().out)
        for figures in (together["splits"][name], last["splits"][name]):
            assert {key: alone[key] for key in figures} == pytest.approx(figures, rel=1e-6)

    assert run_verb("export", "--run", run, "--output", tmp_path / "model") == 0
    card = (tmp_path / "model" / "README.md").read_text()
    assert "| figure | training, last steps | validation wiki | validation other |" in card
    assert card.count("- type: perplexity") == 2


def test_names_must_be_usable(
    dataset: Path, tmp_path: Path, run_verb: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    for value, rule in (
        ('{"a/b": x}', "'a/b' is not the name of a split"),
        ("{}", "name at least one split"),
    ):
        assert run_verb(*fit_arguments(dataset, tmp_path / "run", {"data.validation": value})) == 2
        assert rule in capsys.readouterr().err
