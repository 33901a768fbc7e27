"""The scores of a run's checkpoints in evaluations.jsonl, and in the model card."""

from __future__ import annotations

import doctest
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.tpu_trainer.trained import run_of
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.exports.model_card import model_card
from tpu_trainer.runs import evaluations
from tpu_trainer.runs.evaluations import record_evaluations
from tpu_trainer.runs.run_folder import RunFolder
from tpu_trainer.support.errors import UsageError


def evaluation(tasks: dict[str, Any], step: int = 20, **settings: Any) -> dict[str, Any]:
    defaults = {"shots": None, "limit": None, "harness": "lm-eval 0.4.13", "precision": "float32"}
    return {"step": step, "tasks": tasks} | defaults | settings


def test_worked_examples_give_what_they_show() -> None:
    failures, examples = doctest.testmod(evaluations)
    assert examples and not failures


def test_the_same_task_with_the_same_settings_is_replaced(tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path))
    first = evaluation({"a": {"acc": 0.1}, "b": {"acc": 0.2}})
    others = [evaluation({"a": {"acc": 0.3}}, shots=5), evaluation({"a": {"acc": 0.4}}, step=30)]
    record_evaluations(folder, [first, *others])
    record_evaluations(folder, [evaluation({"b": {"acc": 0.5}})])
    assert folder.evaluations() == [evaluation({"a": {"acc": 0.1}}), *others, evaluation({"b": {"acc": 0.5}})]
    record_evaluations(folder, [evaluation({"a": {"acc": 0.6}})])
    assert folder.evaluations() == [*others, evaluation({"b": {"acc": 0.5}}), evaluation({"a": {"acc": 0.6}})]

    log = tmp_path / "evaluations.jsonl"
    with log.open("a") as file:
        file.write('{"step": 20, "ta')  # of a process that was killed
    record_evaluations(folder, [evaluation({"c": {"acc": 0.7}})])
    assert len(folder.evaluations()) == len(log.read_text().splitlines()) == 5
    before = log.read_text()
    for line in ("{}", '{"step": 20, "tasks": {"a": {"acc": "high"}}}', "nonsense"):
        log.write_text(before + line + "\n")
        with pytest.raises(UsageError, match=r"evaluations\.jsonl, line 6: damaged"):
            record_evaluations(folder, [evaluation({"c": {"acc": 0.8}})])
        assert log.read_text() == before + line + "\n"


def test_the_model_card_has_the_scores_of_its_step(
    tokenizer_folder: Path, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    folder = run_of(tmp_path / "run", tokenizer_folder, vocabulary)
    record_evaluations(
        folder,
        [
            evaluation({"piqa": {"acc": 0.61234, "acc_stderr": 0.01}}, shots=5),
            evaluation({"lambada": {"perplexity": 20.0}}, limit=100),
            evaluation({"agreement": {"acc": 0.75}}, harness=None),
            evaluation({"later": {"acc": 1.0}}, step=30),
        ],
    )
    card = model_card(folder.config(), folder=folder, step=20, parameters=9, vocabulary=vocabulary)
    _, metadata, text = card.split("---\n", 2)
    results = yaml.safe_load(metadata)["model-index"][0]["results"]
    assert [(each["dataset"], each["metrics"]) for each in results[1:]] == [
        (
            {"name": "piqa", "type": "piqa", "args": {"num_few_shot": 5}},
            [{"type": "acc", "value": 0.61234}],
        ),
        ({"name": "agreement", "type": "agreement"}, [{"type": "acc", "value": 0.75}]),
    ]
    assert "| piqa | acc | 0.6123 | 0.0100 | lm-eval 0.4.13, float32, 5 shots |" in text
    assert "| lambada | perplexity | 20.0000 | – | lm-eval 0.4.13, float32, 100 items only |" in text
    assert "| agreement | acc | 0.7500 | – | minimal pairs, float32 |" in text
    assert "later" not in text
