"""`evaluate --tasks` on minimal pairs: figures compared with NumPy's, of runs and exports, and what is refused.

tests/tpu_trainer_export compares scores with those of PyTorch and of lm-eval.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.tpu_trainer.tiny import MAX_LENGTH
from tests.tpu_trainer.trained import export_of, run_of
from tpu_trainer.config import EvaluateConfig
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.exports.saved_tokenizer import save_tokenizer
from tpu_trainer.network.transformer import Inputs
from tpu_trainer.runs.run_folder import RunFolder
from tpu_trainer.support.errors import UsageError

CHOOSER = np.random.default_rng(3)
SENTENCES = [CHOOSER.integers(5, 50, CHOOSER.integers(1, MAX_LENGTH - 2)) for _ in range(40)]
PAIRS = [dict(zip(("sentence_good", "sentence_bad"), pair, strict=True)) for pair in zip(
    *([" ".join(f"w{token - 5}" for token in tokens) for tokens in SENTENCES[start::2]] for start in (0, 1)),
    strict=True,
)]  # fmt: skip


def likelihood(model: Any, ids: list[int], places: list[int], inputs: list[int]) -> float:
    """Sum of the log-probabilities of the ids at `places`, by the logits at the same places of `inputs`."""
    logits = model.logits_at(Inputs(tf.constant([inputs]))).numpy()[0, :, :50].astype(np.float64)
    return sum(logits[place, ids[place]] - np.log(np.exp(logits[place]).sum()) for place in places)


def causal(model: Any, tokens: list[int]) -> float:
    return likelihood(model, tokens, list(range(len(tokens))), [0, *tokens[:-1]])


def masked(model: Any, tokens: list[int]) -> float:
    ids = [0, *tokens, 2]
    return sum(
        likelihood(model, ids, [place], [*ids[:place], 4, *ids[place + 1 :]])
        for place in range(1, len(ids) - 1)
    )


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(pair) + "\n" for pair in PAIRS))
    return path


@pytest.mark.parametrize("strategy", ["cpu", "pjrt"])
@pytest.mark.parametrize(("model_type", "expected"), [("gpt2", causal), ("roberta", masked)])
def test_the_share_of_pairs_is_that_of_plain_numpy(
    model_type: str,
    expected: Callable[..., float],
    strategy: str,
    vocabulary: Vocabulary,
    tokenizer_folder: Path,
    pairs: Path,
    tmp_path: Path,
    run_verb: Callable[..., int],
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    model = export_of(model_type, vocabulary, folder)
    appends = model_type == "roberta"
    save_tokenizer(str(tokenizer_folder), folder, max_length=MAX_LENGTH, token_types=False, appends=appends)
    output = tmp_path / "scores.json"
    options = ["--model", folder, "--tasks", pairs, "--strategy", strategy, "--output", output]
    assert run_verb("evaluate", *options, "--batch_size", 8) == 0
    likelihoods = np.array([expected(model, tokens.tolist()) for tokens in SENTENCES]).reshape(-1, 2)
    share = float((likelihoods[:, 0] > likelihoods[:, 1]).mean())
    assert 0.2 < share < 0.8
    figures = {"acc": share, "acc_stderr": pytest.approx((share * (1 - share) / 19) ** 0.5)}
    if appends:  # each token is a word
        figures |= {f"acc_within_word{name.removeprefix('acc')}": value for name, value in figures.items()}
    assert json.loads(output.read_text()) == {
        "step": None, "tasks": {"pairs": figures}, "shots": None, "limit": None, "harness": None,
        "precision": "float32",
    }  # fmt: skip


def test_scores_of_a_run_are_recorded_and_its_export_has_the_same(
    vocabulary: Vocabulary,
    tokenizer_folder: Path,
    pairs: Path,
    tmp_path: Path,
    run_verb: Callable[..., int],
) -> None:
    folder = run_of(tmp_path / "run", tokenizer_folder, vocabulary)
    options = ["--tasks", pairs, "--strategy", "cpu"]
    assert run_verb("evaluate", "--run", folder.path, *options, "--limit", 7) == 0
    assert run_verb("evaluate", "--run", folder.path, *options) == 0
    assert run_verb("evaluate", "--run", folder.path, *options) == 0
    part, whole = folder.evaluations()
    assert (part["step"], part["limit"], whole["limit"]) == (30, 7, None)
    assert run_verb("export", "--run", folder.path, "--output", tmp_path / "model") == 0
    assert "| pairs | acc |" in (tmp_path / "model" / "README.md").read_text()
    output = tmp_path / "scores.json"
    assert run_verb("evaluate", "--model", tmp_path / "model", *options, "--output", output) == 0
    assert json.loads(output.read_text()) == whole | {"step": None}


def test_what_cannot_be_scored_is_refused(
    vocabulary: Vocabulary,
    tokenizer_folder: Path,
    pairs: Path,
    tmp_path: Path,
    run_verb: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = run_of(tmp_path / "run", tokenizer_folder, vocabulary).path
    pairs.write_text(json.dumps({"sentence_good": "w1 " * 17, "sentence_bad": "w1"}))
    other = tmp_path / "other"
    other.mkdir()
    (other / "pairs.jsonl").write_text(pairs.read_text())
    for tasks, message in {
        str(pairs): "a sentence has 17 tokens; the model takes 1 to 16: 'w1 w1",
        f"{pairs},{other}/pairs.jsonl": "two files have the same name",
        "piqa": "--tasks piqa: needs lm-eval; install the extra lm-eval",
        "nowhere.jsonl": "--tasks: nowhere.jsonl: no such file",
    }.items():
        assert run_verb("evaluate", "--run", run, "--tasks", tasks, "--strategy", "cpu") == 2
        assert message in capsys.readouterr().err
    assert RunFolder(run).evaluations() == []


def test_options_that_do_not_fit_together() -> None:
    for options, message in (
        ({}, r"--run is None: give the folder of a run"),
        ({"run": "r", "model": "m"}, r"--model is 'm': there is --run, too"),
        ({"model": "m"}, r"--model is 'm': only for tasks"),
        (
            {"model": "m", "tasks": "t", "checkpoint": "best"},
            r"--checkpoint is 'best': an exported model has none",
        ),
        ({"run": "r", "checkpoint": "newest"}, r"--checkpoint is 'newest': must be latest, best or a step"),
        ({"run": "r", "shots": 1}, r"--shots is 1: only for tasks"),
        ({"run": "r", "tasks": "a", "data": "d"}, r"--data is 'd': there is --tasks"),
        ({"run": "r", "tasks": "a,,b"}, r"--tasks is 'a,,b': has an empty name"),
        ({"run": "r", "tasks": "a", "limit": 0}, r"--limit is 0: must be at least 1"),
    ):
        with pytest.raises(UsageError, match=message):
            EvaluateConfig(**options)
