"""Fixtures of the end-to-end tests: the programs as users run them, texts, and datasets made once per session."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest

from tests.beam_pipeline.beam_signatures import remember_signatures

remember_signatures()

ROOT = Path(__file__).resolve().parents[2]
WIKITEXT = ROOT.parent / "shared" / "corpora" / "wikitext-2" / "valid.txt"
TRAINER_PYTHON = ROOT / "trainer" / ".venv" / "bin" / "python"


@dataclass(frozen=True)
class Result:
    """A command's exit status and output."""

    status: int
    out: str
    err: str


Pipeline = Callable[..., Result]


def run_pipeline(*arguments: object) -> Result:
    """Runs `python -m beam_pipeline ARGUMENT…` in this process, which has already imported Beam."""
    from beam_pipeline.__main__ import main

    out, err = io.StringIO(), io.StringIO()
    argv = ["beam_pipeline", *map(str, arguments)]
    with (
        mock.patch.object(sys, "argv", argv),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            status = main()
        except SystemExit as end:  # argparse
            status = end.code
    return Result(status, out.getvalue(), err.getvalue())


@pytest.fixture(scope="session")
def pipeline() -> Pipeline:
    """Returns a function that runs a verb of the pipeline."""
    return run_pipeline


@pytest.fixture(scope="session")
def run_successfully() -> Pipeline:
    """Returns a function that runs a verb of the pipeline, which must succeed."""

    def run(*arguments: object) -> Result:
        result = run_pipeline(*arguments)
        assert result.status == 0, result.err
        return result

    return run


@pytest.fixture(scope="session")
def trainer_python() -> Path:
    """The Python of the trainer's environment, which `make test` always has."""
    if not TRAINER_PYTHON.exists():
        if "MAKELEVEL" in os.environ:
            pytest.fail(f"{TRAINER_PYTHON} is missing, though make has set up the environments")
        pytest.skip("no trainer environment; make setup creates it")
    return TRAINER_PYTHON


@pytest.fixture(scope="session")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of text and jsonl files: generated prose, and text that is difficult to read or to tokenize."""
    folder = tmp_path_factory.mktemp("generated")
    chooser = random.Random(0)
    words = ["".join(chooser.choices("aeioubcdfglmnprst", k=chooser.randint(1, 9))) for _ in range(400)]
    weights = [1 / (rank + 1) for rank in range(len(words))]

    def sentence() -> str:
        return " ".join(chooser.choices(words, weights, k=chooser.randint(1, 40))).capitalize() + "."

    difficult_lines = [
        "<mask> is no mask, <s>this</s> is text, and so is <pad><unk>.",
        "Grüße, ﬁne ½ ①, e\u0301 ≠ é, 中文没有空格。 Русский текст. العربية עברית 한국어 ไทย",
        "🙂👩‍👩‍👧‍👦🏳️‍🌈 and \u200bzero\u200dwidth\ufeff and \x00 NUL and \x07 bell \x85 next line \u2028 separator",
        "  many   spaces\tand\ttabs  ",
        "x",
        "a" * 5000,
        " ".join(["word"] * 3000),
    ]
    lines = [sentence() for _ in range(1500)] + difficult_lines + ["", "   "]
    chooser.shuffle(lines)
    (folder / "lines.txt").write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
    crlf = "\ufeff" + "\r\n".join(sentence() for _ in range(50)) + "\r\nno newline at the end"
    (folder / "crlf.txt").write_bytes(crlf.encode())
    (folder / "empty.txt").write_bytes(b"")
    with (folder / "records.jsonl").open("w", encoding="utf-8", newline="\n") as file:
        for index in range(400):
            text = "\n\n".join(sentence() for _ in range(chooser.randint(1, 4)))
            text = difficult_lines[index % len(difficult_lines)] if index % 40 == 0 else text
            file.write(json.dumps({"id": index, "text": text}, ensure_ascii=index % 2 == 0) + "\n")
        file.write('\n{"text": ""}\n')
    return folder


@pytest.fixture(scope="session")
def generated_tokenizer(
    run_successfully: Pipeline, generated: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A tokenizer trained on the generated text."""
    folder = tmp_path_factory.mktemp("tokenizers") / "generated"
    run_successfully("train-tokenizer", "--input", generated / "*", "--vocab_size", 600, "--output", folder)
    return folder


@pytest.fixture(scope="session")
def generated_dataset(
    run_successfully: Pipeline,
    generated: Path,
    generated_tokenizer: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A dataset of the generated text with one split, many units and several shards."""
    folder = tmp_path_factory.mktemp("datasets") / "generated"
    run_successfully(
        *("prepare", "--input", generated / "*", "--tokenizer", generated_tokenizer, "--output", folder),
        *("--max_length", 64, "--shard_size", 100, "--unit_bytes", 7000),
    )
    return folder


@pytest.fixture(scope="session")
def wikitext() -> Path:
    """A file of real text. Tests that need it are skipped if it is not beside the checkout."""
    if not WIKITEXT.exists():
        pytest.skip(f"{WIKITEXT} is missing")
    return WIKITEXT


@pytest.fixture(scope="session")
def wikitext_dataset(
    run_successfully: Pipeline, wikitext: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A dataset of wikitext-2's validation text with one split, and a tokenizer trained on this text."""
    folder = tmp_path_factory.mktemp("wikitext")
    run_successfully(
        "train-tokenizer", "--input", wikitext, "--vocab_size", 4000, "--output", folder / "tokenizer"
    )
    run_successfully(
        *("prepare", "--input", wikitext),
        *("--tokenizer", folder / "tokenizer", "--output", folder / "dataset"),
        *("--split", "validation", "--max_length", 128, "--shard_size", 500, "--unit_bytes", 100_000),
    )
    return folder / "dataset"
