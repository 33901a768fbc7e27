"""Runs on rows of which some tokens are targets of the loss: the shift of labels, and the mean over all targets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tpu_trainer.small_runs import assert_equal_but_for_rounding, fit_arguments, metrics
from tests.tpu_trainer.tiny import SPECIAL_TOKENS, WORDS, write_split

LENGTH = 16
OPTIONS: dict[str, Any] = {
    "model.type": "gpt2",
    "model.config.n_embd": 64,
    "model.config.n_layer": 1,
    "model.config.n_head": 2,
    "objective": "clm",
    "train.batch_size": 16,
    "train.log_every": 50,
    "schedule.warmup_steps": 5,
}


def questions_and_answers(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns ids, int64[rows, LENGTH], and which of them are targets.

    Every second token is an answer, which follows from the random token before it. Nothing predicts the others.
    """
    answers = np.random.default_rng(0).permutation(WORDS)
    questions = np.random.default_rng(seed).integers(0, WORDS, size=(rows, LENGTH // 2))
    ids = np.stack([questions, answers[questions]], axis=2).reshape(rows, LENGTH) + len(SPECIAL_TOKENS)
    return ids, np.tile(np.arange(LENGTH) % 2, (rows, 1))


def dataset(folder: Path, tokenizer: Path, masks: dict[str, np.ndarray | None] | None = None) -> Path:
    for seed, split in enumerate(("train", "validation"), 1):
        ids, mask = questions_and_answers(480, seed)
        chosen = mask if masks is None else masks[split]
        write_split(folder / split, ids, tokenizer=tokenizer, loss_mask=chosen)
    return folder


def test_a_model_learns_the_answers_and_nothing_else(
    run_verb: Callable[..., int], tokenizer_folder: Path, tmp_path: Path
) -> None:
    data = dataset(tmp_path / "data", tokenizer_folder)
    options = OPTIONS | {"train.steps": 150, "train.evaluate_every": 150, "optimizer.learning_rate": 0.01}
    assert run_verb(*fit_arguments(data, tmp_path / "run", options)) == 0
    evaluation = next(record["eval"] for record in metrics(tmp_path / "run") if "eval" in record)
    # With labels shifted once more or once less, the targets would be random: a loss of ln 45, 3.8.
    assert evaluation["loss"] < 0.2
    assert evaluation["accuracy"] > 0.95


def test_the_mean_is_over_the_targets_of_all_micro_batches(
    run_verb: Callable[..., int], tokenizer_folder: Path, tmp_path: Path
) -> None:
    uneven = np.zeros((480, LENGTH), np.int64)
    for row in range(480):  # some rows have a single target, others 15; half of the first rows have none
        uneven[row, 1 : 1 + row % 16] = 1
    data = dataset(tmp_path / "data", tokenizer_folder, {"train": uneven, "validation": uneven})
    for accumulation in (1, 4):
        options = OPTIONS | {
            "train.steps": 6,
            "train.log_every": 1,
            "train.evaluate_every": 6,
            "train.accumulation": accumulation,
        }
        run = tmp_path / f"run-{accumulation}"
        assert run_verb(*fit_arguments(data, run, options)) == 0
    assert_equal_but_for_rounding(tmp_path / "run-4", tmp_path / "run-1")


@pytest.mark.parametrize(
    ("options", "validation_has_mask", "message"),
    [
        (
            {"objective": "mlm", "model.type": "roberta"},
            True,
            "has loss_mask, which marks the tokens that a causal",
        ),
        ({}, False, "lacks loss_mask, unlike the training data"),
    ],
)
def test_data_that_does_not_fit_is_refused(
    options: dict[str, Any],
    validation_has_mask: bool,
    message: str,
    run_verb: Callable[..., int],
    tokenizer_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, mask = questions_and_answers(480, 1)
    masks = {"train": mask, "validation": mask if validation_has_mask else None}
    data = dataset(tmp_path / "data", tokenizer_folder, masks)
    given = {"train.steps": 10, "schedule.warmup_steps": 5} | ({} if options else OPTIONS) | options
    assert run_verb(*fit_arguments(data, tmp_path / "run", given)) == 2
    assert message in capsys.readouterr().err
