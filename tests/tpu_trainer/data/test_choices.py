"""Multiple-choice items: their rows, and their log-likelihoods compared with NumPy's."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.tpu_trainer.step.test_task import config_of
from tests.tpu_trainer.tiny import MAX_LENGTH
from tpu_trainer.config import DataConfig, FitConfig, ModelConfig
from tpu_trainer.data.choices import ChoiceRows, Item, read_items
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.devices.tensorflow.executor import TensorFlowExecutor
from tpu_trainer.network.transformer import Inputs
from tpu_trainer.support.errors import UsageError
from tpu_trainer.training.build import build_task
from tpu_trainer.training.evaluation import ChoiceEvaluator

ITEMS = [
    Item(context="7 8 9", choices=[" 10", " 30 31 32", " 33"], answer=0),
    Item(context="", choices=["5 6", "6 5"], answer=1),
    Item(context=" ".join(map(str, range(5, 25))), choices=[" 25 26", " 40"], answer=1),
]


def rows_of(items: list[Item], **options: Any) -> ChoiceRows:
    defaults = {"prefix": 2, "max_length": MAX_LENGTH, "features": ("input_ids", "attention_mask")}
    return ChoiceRows(
        items, path="items.jsonl", encode=lambda text: list(map(int, text.split())), **defaults | options
    )


def test_a_row_has_the_end_of_the_context_and_the_choice_as_targets() -> None:
    rows = rows_of(ITEMS, features=("input_ids", "segment_ids", "position_ids", "attention_mask"))
    values = rows[np.arange(len(rows))]
    assert list(values) == ["input_ids", "attention_mask", "position_ids", "segment_ids", "loss_mask"]
    targets = [
        ids[mask > 0].tolist() for ids, mask in zip(values["input_ids"], values["loss_mask"], strict=True)
    ]
    assert targets == [[10], [30, 31, 32], [33], [5, 6], [6, 5], [25, 26], [40]]
    texts = [
        ids[mask > 0].tolist()
        for ids, mask in zip(values["input_ids"], values["attention_mask"], strict=True)
    ]
    assert texts[:2] == [[7, 8, 9, 10], [7, 8, 9, 30, 31, 32]]
    assert texts[3] == [2, 5, 6]
    assert texts[5] == [*range(11, 27)] and texts[6] == [*range(10, 25), 40]


def test_the_answer_is_the_likeliest_choice_also_per_byte() -> None:
    # The second choice of the first item is the longest: likeliest per byte only.
    losses = np.array([3.0, 6.0, 9.0, 5.0, 4.0, 1.0, 2.0])
    assert rows_of(ITEMS).accuracy(losses) == pytest.approx((2 / 3, 1 / 3))


@pytest.mark.parametrize("devices", [1, 2])
def test_likelihoods_are_those_of_plain_numpy(vocabulary: Vocabulary, devices: int) -> None:
    model = ModelConfig(type="gpt2", config={"n_embd": 16, "n_layer": 1, "n_head": 2})
    config = replace(config_of(), objective="clm", model=model)
    strategy = (
        tf.distribute.get_strategy() if devices == 1 else tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    )
    with strategy.scope():
        task = build_task(config, vocabulary=vocabulary, max_length=MAX_LENGTH)
    for weight in task.weights.values():  # so that choices differ
        weight.assign(weight * 5)
    rows = rows_of(ITEMS)
    evaluator = ChoiceEvaluator(
        TensorFlowExecutor(task, strategy), rows=rows, vocabulary=vocabulary, batch_size=4
    )
    found: list[np.ndarray] = []
    accuracy = rows.accuracy
    rows.accuracy = lambda losses: found.append(losses) or accuracy(losses)
    figures = evaluator.run(stop=lambda: False)
    assert figures["items"] == 3 and evaluator.run(stop=lambda: True) is None

    values = rows[np.arange(len(rows))]
    inputs = Inputs(tf.constant(values["input_ids"]), tf.constant(values["attention_mask"]))
    logits = task.objective.model.logits_at(inputs).numpy()[..., :50].astype(np.float64)
    log_probabilities = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    expected = [
        -sum(log_probabilities[row, column - 1, ids[column]] for column in np.flatnonzero(mask))
        for row, (ids, mask) in enumerate(zip(values["input_ids"], values["loss_mask"], strict=True))
    ]
    np.testing.assert_allclose(found[0], expected, rtol=1e-5)
    assert np.ptp(found[0]) > 0.1


def test_files_and_items_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "items.jsonl"
    with pytest.raises(UsageError, match=r"items\.jsonl: no such file"):
        read_items(str(path))
    path.write_text("\n\n")
    with pytest.raises(UsageError, match=r"items\.jsonl: no items"):
        read_items(str(path))
    good = {"context": "a", "choices": [" b", " c"], "answer": 1}
    wrong = [
        {"answer": 2}, {"answer": -1}, {"answer": True}, {"answer": "1"}, {"choices": []}, {"choices": ["", "a"]},
        {"choices": "ab"}, {"context": None},
    ]  # fmt: skip
    for text in ("{", "[]", *(json.dumps(good | each) for each in wrong)):
        path.write_text(json.dumps(good) + "\n" + text + "\n")
        with pytest.raises(UsageError, match=r"items\.jsonl, line 2: not"):
            read_items(str(path))
    path.write_text(json.dumps(good))
    assert read_items(str(path)) == [Item(**good)]
    for item, options in (
        (Item(context="", choices=["5"], answer=0), {"prefix": None}),
        (Item(context="5", choices=[" 6" * MAX_LENGTH], answer=0), {}),
        (Item(context="5", choices=[" "], answer=0), {}),
    ):
        with pytest.raises(UsageError, match="needs at least one of both"):
            rows_of([item], **options)
    with pytest.raises(UsageError, match=r"--data.choices.* set --data.validation, too"):
        DataConfig(train="a", choices="b")
    with pytest.raises(UsageError, match=r"--data.choices.* only causal models"):
        FitConfig(output_dir="x", data=DataConfig(train="a", validation="b", choices="c"))
