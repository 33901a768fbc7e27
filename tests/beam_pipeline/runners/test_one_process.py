"""Runs without Beam: the bytes are those of Beam's runner, errors are messages, and Beam is not imported.

The other tests in this process use Beam, which is imported before the steps; these run the command line.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from beam_pipeline.verbs import annotate, convert, prepare
from tests.beam_pipeline.runs import arguments, content

SPLITS = [
    "--splits",
    "train=0.8,validation=0.2",
    "--unit_bytes",
    "20000",
    "--max_length",
    "32",
    "--shard_size",
    "300",
]
IMPORTED = "print(sorted({'apache_beam', 'grpc', 'google.auth'} & set(sys.modules)))"


def run_alone(verb: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs a verb in a process of its own, which prints at its end which of Beam's packages are imported."""
    code = (
        "import atexit, sys; from beam_pipeline.__main__ import run; "
        f"atexit.register(lambda: {IMPORTED}); sys.exit(run({verb!r}, {list(words)!r}))"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def repeated(corpus: Path, folder: Path) -> Path:
    """Writes a corpus with repeated and similar documents."""
    lines = corpus.read_text(encoding="utf-8").splitlines(keepends=True)
    similar = [f"{line.rstrip()} again\n" for line in lines[200:260] if line.strip()]
    path = folder / "repeated.txt"
    path.write_text("".join([*lines, *lines[:50], *similar]), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "options",
    [
        ["--segment_ids", "--attention_mask"],
        ["--dedup", "exact"],
        ["--dedup", "near", "--near_threshold", "0.7"],
        ["--dry_run", "--dedup", "exact"],
        ["--packing", "none", "--output_format", "megatron"],
    ],
    ids=lambda options: " ".join(options[:2]),
)
def test_the_bytes_are_those_of_beam(
    options: list[str], corpus: Path, tokenizer_folder: Path, tmp_path: Path
) -> None:
    source = repeated(corpus, tmp_path)
    words = [*SPLITS, *options]
    if "megatron" in options:
        words = ["--unit_bytes", "20000", *options]
    prepare.main(arguments(source, tokenizer_folder, tmp_path / "beam", *words))
    result = run_alone("prepare", *arguments(source, tokenizer_folder, tmp_path / "alone", *words))
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "[]"
    assert content(tmp_path / "alone") == content(tmp_path / "beam")


def test_other_verbs_give_the_bytes_of_beam(dataset: Path, corpus: Path, tmp_path: Path) -> None:
    converted = [str(dataset), "--output_format", "parquet", "--output"]
    convert.main([*converted, str(tmp_path / "beam")])
    annotated = ["--input", str(corpus), "--measure", "gopher", "--unit_bytes", "20000", "--output"]
    annotate.main([*annotated, str(tmp_path / "beam_attributes")])
    for verb, words, name in (("convert", converted, "alone"), ("annotate", annotated, "alone_attributes")):
        result = run_alone(verb, *words, str(tmp_path / name))
        assert result.returncode == 0, result.stderr
        assert result.stdout.splitlines()[-1] == "[]"
        assert content(tmp_path / name) == content(tmp_path / name.replace("alone", "beam"))


def test_training_a_tokenizer_does_not_import_beam(corpus: Path, tmp_path: Path) -> None:
    words = ["--input", str(corpus), "--vocab_size", "300", "--output", str(tmp_path / "tokenizer")]
    result = run_alone("train-tokenizer", *words)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "[]"


def test_an_error_in_a_step_is_a_message(tokenizer_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('{"text": "a"}\n{"text": 5}\n')
    result = run_alone("prepare", *arguments(tmp_path / "bad.jsonl", tokenizer_folder, tmp_path / "out"))
    assert result.returncode == 1
    assert "bad.jsonl" in result.stderr
    assert "Traceback" not in result.stderr
