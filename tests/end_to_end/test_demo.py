"""Both programs, joined by files alone: the demo on a small text that a tiny model learns within seconds."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from pathlib import Path

import pytest

from beam_pipeline import __file__ as package

ROOT = Path(package).parents[1]

CONFIG = """
model:
  type: roberta
  config:
    hidden_size: 64
    num_hidden_layers: 1
    num_attention_heads: 2
    intermediate_size: 128
    type_vocab_size: 1
    hidden_dropout_prob: 0.0
    attention_probs_dropout_prob: 0.0
  init_output_bias: true
optimizer:
  learning_rate: 0.005
schedule:
  warmup_steps: 10
train:
  steps: 200
  batch_size: 16
  log_every: 50
"""


def demo(*words: object) -> subprocess.CompletedProcess[str]:
    """Runs the demo as `make demo` does."""
    command = [sys.executable, "-m", "demo", *map(str, words)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text in which a word's neighbours tell much of it: a document keeps to the words of one of ten subjects."""
    chooser = random.Random(0)
    letters = [a + b + c for a in "bdfgklmnprst" for b in "aeiou" for c in "bdfgklmnprst"]
    words = chooser.sample(letters, 100)
    subjects = [words[first : first + 10] for first in range(0, 100, 10)]

    def document() -> str:
        subject = chooser.choice(subjects)
        sentences = (" ".join(chooser.choices(subject, k=chooser.randint(8, 16))) for _ in range(10))
        return " ".join(f"{sentence.capitalize()}." for sentence in sentences)

    path = tmp_path_factory.mktemp("demo") / "text.txt"
    path.write_text("".join(document() + "\n" for _ in range(300)))
    return path


@pytest.fixture(scope="module")
def options(text: Path, trainer_python: Path) -> list[object]:
    """The demo's options for the text, all but the input."""
    config = text.with_name("tiny.yaml")
    config.write_text(CONFIG)
    return ["--config", config, "--trainer_python", trainer_python, "--output", text.with_name("out")]


@pytest.fixture(scope="module")
def first(text: Path, options: list[object]) -> subprocess.CompletedProcess[str]:
    ended = demo("--input", text, *options)
    assert ended.returncode == 0, ended.stderr
    return ended


def test_the_model_learns_more_than_frequencies(first: subprocess.CompletedProcess[str], text: Path) -> None:
    run = text.with_name("out") / "run"
    fitted = json.loads((run / "summary.json").read_text())
    evaluated = json.loads((run / "evaluation.json").read_text())
    train = text.with_name("out") / "dataset" / "train"
    counts = json.loads((train / "statistics.json").read_text())["token_counts"]
    for special in json.loads((train / "manifest.json").read_text())["tokenizer"]["all_special_ids"]:
        counts[special] = 0  # never masked
    shares = [count / sum(counts) for count in counts if count]
    assert fitted["unigram_entropy"] == pytest.approx(-sum(share * math.log(share) for share in shares))
    assert fitted["initial_loss"] > fitted["unigram_entropy"] - 0.3
    assert evaluated["loss"] < fitted["unigram_entropy"] - 1
    assert "below: the model has learnt more than frequencies" in first.stdout


def test_the_summary_says_what_there_is(first: subprocess.CompletedProcess[str], text: Path) -> None:
    summary = first.stdout[first.stdout.index("Done in") :]
    output = text.with_name("out")
    manifests = [
        json.loads((output / "dataset" / s / "manifest.json").read_text()) for s in ("train", "validation")
    ]
    documents, tokens, rows = (
        sum(manifest["totals"][key] for manifest in manifests) for key in ("documents", "tokens", "rows")
    )
    evaluated = json.loads((output / "run" / "evaluation.json").read_text())
    assert documents == 300
    assert f"{documents:,} documents" in summary
    assert f"{tokens:,} of a vocabulary" in summary
    for manifest in manifests:
        assert f"{manifest['totals']['rows']:,} rows of 128" in summary
    assert rows == sum(shard["records"] for manifest in manifests for shard in manifest["shards"])
    assert f"{evaluated['loss']:.3f}, accuracy {evaluated['accuracy']:.1%}" in summary
    assert " MB/s" in summary
    assert str(output / "model") in summary
    chosen = [
        json.loads(line) for line in (output / "sentences" / "sentences.jsonl").read_text().splitlines()
    ]
    assert len(chosen) == 5
    for item in chosen:
        assert f"  {item['masked']}\n" in summary
        assert f"truth {item['truth']!r}; guesses" in summary


def test_a_second_run_finds_everything_done(
    first: subprocess.CompletedProcess[str], text: Path, options
) -> None:
    again = demo("--input", text, *options)
    assert again.returncode == 0, again.stderr
    lines = again.stdout.splitlines()
    assert [line.endswith(": unchanged") for line in lines[:7]] == [True] * 7
    assert "$ " not in again.stdout
    told = first.stdout[first.stdout.index("The dataset") :]
    assert again.stdout[again.stdout.index("The dataset") :] == told


def test_a_failing_step_stops_the_demo_with_its_message(
    text: Path, options: list[object], tmp_path: Path
) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "good"}\n{"text": \n')
    ended = demo("--input", tmp_path / "in.jsonl", *options[:-1], tmp_path / "out")
    assert ended.returncode == 1
    assert f"{tmp_path}/in.jsonl, line 2" in ended.stderr
    assert "the step 'tokenizer' failed with status 1" in ended.stderr
    assert "[2/7]" not in ended.stdout


def test_an_input_that_is_not_there(options: list[object], tmp_path: Path) -> None:
    ended = demo("--input", tmp_path / "*.txt", *options[:-1], tmp_path / "out")
    assert ended.returncode == 1
    assert f"--input {tmp_path}/*.txt: no file matches" in ended.stderr
    assert not (tmp_path / "out").exists()
