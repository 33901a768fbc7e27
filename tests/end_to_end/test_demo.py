"""The demo runs both programs on a small text that a tiny model learns within seconds."""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from beam_pipeline import __file__ as package
from beam_pipeline.views.reading import FinishedSplit, Row
from demo import held_out

ROOT = Path(package).parents[1]

MODEL = """
objective: clm
model:
  type: gptj
  config: {n_embd: 64, n_layer: 1, n_head: 2, rotary_dim: 16, resid_pdrop: 0.0, embd_pdrop: 0.0, attn_pdrop: 0.0}
optimizer: {learning_rate: 0.01}
schedule: {warmup_steps: 10}
train: {steps: 60, batch_size: 8, log_every: 20}
"""


def demo(folder: Path, *inputs: object) -> subprocess.CompletedProcess[str]:
    """Runs the demo as `make demo` does, with a smaller model."""
    return subprocess.run(
        [ROOT / "demo" / "run.sh", folder, *inputs],
        env=os.environ | {"MODEL": str(folder.parent / "model.yaml")},
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, trainer_python: Path) -> Path:
    """A folder with the configuration and text/. Each document uses the words of one of ten subjects."""
    place = tmp_path_factory.mktemp("demo")
    (place / "model.yaml").write_text(MODEL)
    chooser = random.Random(0)
    letters = [a + b + c for a in "bdfgklmnprst" for b in "aeiou" for c in "bdfgklmnprst"]
    words = chooser.sample(letters, 100)
    subjects = [words[first : first + 10] for first in range(0, 100, 10)]
    (place / "text").mkdir()
    for name in ("a.txt", "b.txt"):
        with (place / "text" / name).open("w") as file:
            for _ in range(60):
                print(" ".join(chooser.choices(chooser.choice(subjects), k=400)), file=file)
    return place


@pytest.fixture(scope="module")
def first(place: Path) -> subprocess.CompletedProcess[str]:
    result = demo(place / "out", place / "text")
    assert result.returncode == 0, result.stdout + result.stderr
    return result


def test_the_model_learns_more_than_frequencies_and_the_demo_says_how_much(first, place: Path) -> None:
    summary = json.loads((place / "out" / "run" / "summary.json").read_text())
    assert summary["eval"]["loss"] < summary["unigram_entropy"] - 1
    assert f"Held-out loss {summary['eval']['loss']:.3f} nats per token" in first.stdout


def test_it_continues_texts_that_were_not_trained_on(first, place: Path) -> None:
    answers = (place / "out" / "answers.jsonl").read_text().splitlines()
    assert len(answers) == 3
    documents = [
        text for name in ("a.txt", "b.txt") for text in (place / "text" / name).read_text().splitlines()
    ]
    for answer in map(json.loads, answers):
        assert any(answer["text"] + answer["actual"] in document for document in documents)
        assert answer["continuation"] and answer["continuation"].strip() in first.stdout


def test_all_that_it_points_to_is_there(first, place: Path) -> None:
    for name in ("dataset/report.html", "run/loss.svg", "model"):
        assert f"{place / 'out'}/{name}" in first.stdout and (place / "out" / name).exists()


def test_a_second_run_skips_what_is_done_and_says_the_same(first, place: Path) -> None:
    weights = (place / "out" / "model" / "model.safetensors").read_bytes()
    second = demo(place / "out", place / "text")
    assert second.returncode == 0, second.stderr
    assert "step 1/60" not in second.stdout and "tokenize" not in second.stderr
    assert (place / "out" / "model" / "model.safetensors").read_bytes() == weights
    assert second.stdout.partition("held-out text")[2] == first.stdout.partition("held-out text")[2]


def test_the_chat_demo_goes_on_from_its_model(first, place: Path) -> None:
    command = [ROOT / "demo" / "chat.sh", place / "out"]
    result = subprocess.run(command, env=os.environ | {"STEPS": "3"}, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    answers = [
        json.loads(line) for line in (place / "out" / "chat" / "answers.jsonl").read_text().splitlines()
    ]
    assert len(answers) > 500
    assert f"of {len(answers)} answers are right" in result.stdout
    trained = (place / "out" / "chat" / "train.jsonl").read_text()
    assert not any(json.dumps(answer["text"]) in trained for answer in answers)


def test_beginnings_of_short_documents_are_chosen_too(
    first, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = FinishedSplit.rows

    def cut(split: FinishedSplit, shard: int) -> Iterator[Row]:
        for row in rows(split, shard):
            ids = row.ids.copy()
            ids[6::20] = split.manifest["tokenizer"]["special_token_ids"]["eos"]
            yield replace(row, ids=ids)

    monkeypatch.setattr(FinishedSplit, "rows", cut)
    questions = list(held_out.choose(str(place / "out" / "dataset" / "validation")))
    assert len(questions) == 3
    for question in questions:
        assert question["text"].strip() and question["actual"].strip()
        assert "<|endoftext|>" not in question["text"] + question["actual"]


def test_too_little_text_is_an_error_before_training(place: Path, tmp_path: Path) -> None:
    (tmp_path / "note.md").write_text("A note of a single line.\n")
    result = demo(tmp_path / "out", tmp_path / "note.md")
    assert result.returncode == 2
    assert "demo: too little text: no document is left for validation" in result.stderr
    assert "[3/6]" not in result.stdout


def test_a_failing_step_stops_the_demo_with_its_message_and_the_way_on(place: Path, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "good"}\n{"text": \n')
    result = demo(tmp_path / "out", tmp_path / "in.jsonl")
    assert result.returncode == 1
    assert f"{tmp_path}/in.jsonl, line 2" in result.stderr
    assert f"remove {tmp_path}/out or choose another OUTPUT" in result.stderr
    assert "[2/6]" not in result.stdout
