"""Without the packages of an extra, its options are refused by name before anything is written."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from beam_pipeline.__main__ import run
from beam_pipeline.support.extras import MODULES
from tests.beam_pipeline.runs import arguments

DATAFLOW = ("--runner", "DataflowRunner", "--project", "p", "--region", "r")


def options_of(verb: str, corpus: Path, tokenizer: Path, output: Path) -> list[str]:
    if verb == "prepare":
        return arguments(corpus, tokenizer, output)
    if verb == "train-tokenizer":
        return ["--input", str(corpus), "--output", str(output)]
    return []


@pytest.mark.parametrize(
    ("extra", "verb", "options", "purpose"),
    [
        ("gcp", "prepare", ["--input", "gs://bucket/corpus.txt"], "gs://bucket/corpus.txt"),
        ("gcp", "prepare", ["--output", "gs://bucket/dataset"], "gs://bucket/dataset"),
        ("gcp", "prepare", ["--tokenizer", "gs://bucket/tokenizer"], "gs://bucket/tokenizer"),
        ("gcp", "train-tokenizer", ["--output", "gs://bucket/tokenizer"], "gs://bucket/tokenizer"),
        ("gcp", "verify", ["gs://bucket/dataset"], "gs://bucket/dataset"),
        ("gcp", "inspect", ["gs://bucket/dataset"], "gs://bucket/dataset"),
        ("gcp", "prepare", DATAFLOW, "--runner DataflowRunner"),
        ("gcp", "follow", ["job", "--project", "p", "--region", "r"], ""),
        ("analyze", "prepare", ["--analyze"], "--analyze"),
        ("analyze", "analyze", ["dataset"], ""),
        ("huggingface", "train-tokenizer", ["--dataset_name", "wikitext"], "--dataset_name wikitext"),
    ],
)
def test_an_option_names_the_extra_that_it_needs(
    extra: str,
    verb: str,
    options: list[str],
    purpose: str,
    corpus: Path,
    tokenizer_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    for module in MODULES[extra]:
        monkeypatch.setitem(sys.modules, module, None)
    given = options_of(verb, corpus, tokenizer_folder, tmp_path / "out")
    if "--dataset_name" in options:
        given = given[2:]  # instead of --input
    assert run(verb, [*given, *options]) == 2
    message = caplog.messages[-1]
    assert message.startswith(": ".join(filter(None, [verb, purpose, "needs "])))
    assert f"pip install 'tokenmill[{extra}]'" in message
    assert not (tmp_path / "out").exists()


def test_s3_names_the_package_that_it_needs(
    corpus: Path, tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setitem(sys.modules, "boto3", None)
    assert (
        run("prepare", arguments(corpus, tokenizer_folder, Path("out"), "--output", "s3://bucket/out")) == 2
    )
    assert caplog.messages[-1] == (
        "prepare: s3://bucket/out: needs boto3; install it: pip install 'apache-beam[aws]'"
    )
