"""Documents that an engine cannot encode are bad records, and characters that a tokenizer drops are counted."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from beam_pipeline.dataset.manifest import read_manifest
from beam_pipeline.engines import documents
from beam_pipeline.engines.engine import make_engine
from beam_pipeline.engines.failures import hidden_panics
from beam_pipeline.engines.hf import HFEngine
from beam_pipeline.engines.unknown_text import describe_unknown
from beam_pipeline.support.errors import DataError, UsageError
from beam_pipeline.tokenization.description import describe_tokenizer
from beam_pipeline.tokenization.library_errors import EncodingError, library_errors
from beam_pipeline.verbs import inspection, prepare
from tests.beam_pipeline.runs import defects
from tests.beam_pipeline.tokenizers import TOKENIZERS

WORDS = {"the": 0, "cat": 1, "sat": 2}
GOOD, BAD = ["the cat sat", "the cat"], "the dog sat"
SLOW = "the " + "a" * 60 + "b"  # (a+)+$ needs more steps than Oniguruma allows


def _word_level() -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel(WORDS, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def _wordpiece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(WORDS, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def _unigram() -> Tokenizer:
    return Tokenizer(models.Unigram([(char, -1.0) for char in "thecas "]))


def _panicking() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE({char: number for number, char in enumerate("abcdehost ")}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("(a+)+$"), "isolated")
    return tokenizer


MISSING = "Missing [UNK] token from the vocabulary"
FAILING = {
    "WordLevel": (_word_level, BAD, MISSING, "cannot encode a word"),
    "WordPiece": (_wordpiece, BAD, MISSING, "cannot encode a word"),
    "Unigram": (_unigram, BAD, "unknown token", "cannot encode a character"),
    "panic": (_panicking, SLOW, "Onig: Regex search error", "drops the characters"),
}


def save(tokenizer: Tokenizer, folder: Path) -> Path:
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def arguments(tmp_path: Path, tokenizer: Path, *lines: str) -> list[str]:
    source = tmp_path / "in.txt"
    source.write_text("".join(line + "\n" for line in lines))
    argv = ["--input", source, "--tokenizer", tokenizer, "--output", tmp_path / "out", "--max_length", 8]
    return [*map(str, argv), "--document", "line", "--max_bad_ratio", "1"]


@pytest.mark.parametrize("kind", FAILING)
def test_a_document_that_cannot_be_encoded_is_a_bad_record(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
):
    make, bad_line, reason, warning = FAILING[kind]
    argv = arguments(tmp_path, save(make(), tmp_path / "tokenizer"), GOOD[0], bad_line, *GOOD, bad_line)
    with pytest.raises(DataError) as error:
        prepare.main(argv)
    assert f"in.txt, line 2 (byte {len(GOOD[0]) + 1}): the engine hf cannot encode it" in str(error.value)
    assert reason in str(error.value) and "--on_bad_record skip" in str(error.value)
    assert warning in caplog.text  # known before the run
    if kind != "WordLevel":  # what follows is the same for all
        return
    with pytest.raises(DataError, match="line 2"):
        prepare.main([*argv, "--estimate"])
    prepare.main([*argv, "--on_bad_record", "skip"])
    out = tmp_path / "out"
    assert defects(out) == [] and {path.name for path in out.iterdir()} == {
        *("train", "tokenizer", "inputs.jsonl", "report.html", "bad_records")
    }
    manifest = read_manifest(str(out / "train"))
    assert manifest["excluded"]["records"] == 5 and manifest["excluded"]["bad_records"] == 2
    [engine] = manifest["engines"]
    assert engine["documents"] == manifest["totals"]["documents"] == 3
    records = [
        json.loads(line) for line in (out / "bad_records" / "unit-000000.jsonl").read_text().splitlines()
    ]
    assert [record["content"] for record in records] == [bad_line] * 2 and reason in records[0]["reason"]
    inspection.main([str(out), "--record", "train:0:0", "--trace", "always"])
    assert re.search(r"in\.txt, line [134] \(byte", capfd.readouterr().out)


def test_text_on_which_a_tokenizer_seems_to_hang_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    encode = HFEngine.encode_batch

    def slowly(engine: HFEngine, texts: list[str]) -> tuple:
        if "cat" in texts[0]:
            time.sleep(0.5)
        return encode(engine, texts)

    monkeypatch.setattr(documents, "_SLOW_SECONDS", 0.1)
    monkeypatch.setattr(HFEngine, "encode_batch", slowly)
    prepare.main(arguments(tmp_path, save(_panicking(), tmp_path / "tokenizer"), *GOOD))
    assert "in.txt: encoding takes more than 0.1 s for the 2 documents from place 0 on" in caplog.text


def test_a_panic_in_a_worker_process_names_the_document(tmp_path: Path):
    argv = arguments(tmp_path, save(_panicking(), tmp_path / "tokenizer"), GOOD[0], SLOW)
    workers = ["--direct_running_mode", "multi_processing", "--direct_num_workers", "2"]
    result = subprocess.run(
        [sys.executable, "-m", "beam_pipeline", "prepare", *argv, *workers],
        capture_output=True,
        text=True,
        env={**os.environ, "RUST_BACKTRACE": "0"},
    )
    assert result.returncode == 1
    assert all(word not in result.stderr for word in ("panicked at", "Traceback", "WARNING", "ERROR"))
    last_line = result.stderr.splitlines()[-1]
    assert (
        last_line.startswith("prepare: ")
        and "in.txt, line 2 (byte 12): the engine hf cannot encode it" in last_line
    )
    assert not (tmp_path / "out").exists()


def test_characters_that_a_tokenizer_drops_are_counted(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    tokenizer = Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    prepare.main(arguments(tmp_path, save(tokenizer, tmp_path / "tokenizer"), "ab ab", "xyz", "a ü b"))
    [engine] = read_manifest(str(tmp_path / "out" / "train"))["engines"]
    assert engine["dropped"] == {"documents": 2, "characters": 4} and defects(tmp_path / "out") == []
    assert "no token for 4 characters of 2 documents, and drops them" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("name", "change", "expected"),
    [
        ("bpe", {}, None),
        ("bpe-neox", {}, None),  # it lacks bytes that are never in UTF-8
        ("bpe-without-bytes", {}, "drops the characters"),
        ("sentencepiece", {}, None),
        ("wordpiece", {}, None),
        ("wordpiece", {"unk_token": "<none>"}, "its vocabulary lacks the unknown token '<none>'"),
        ("unigram", {"unk_id": None}, "it has no unknown token"),
        ("bpe-nanochat", {"unk_token": "<none>"}, None),
    ],
)
def test_what_a_model_does_with_unknown_text_is_known(name: str, change: dict, expected: str | None):
    parts = TOKENIZERS[name]()
    parts["model"] = {**parts["model"], **change}
    description = describe_unknown(parts)
    assert description is None if expected is None else expected in description


@pytest.mark.parametrize("fuses_unknown", [False, True])
def test_characters_with_a_byte_without_a_token_are_unknown(fuses_unknown: bool, hostile_texts: list[str]):
    parts = TOKENIZERS["sentencepiece"]()
    missing = {"<0xC3>", "<0xE2>", "é", "a"}
    vocab = [token for token in parts["model"]["vocab"] if missing.isdisjoint((token, *token))]
    parts["model"]["vocab"] = {token: number for number, token in enumerate(vocab)}
    parts["model"]["merges"] = [
        pair for pair in parts["model"]["merges"] if {*pair, "".join(pair)} <= {*vocab}
    ]
    parts["model"]["fuse_unk"] = fuses_unknown
    for token in parts["added_tokens"]:
        token["id"] = parts["model"]["vocab"][token["content"]]
    tokenizer_json = json.dumps(parts)
    texts = ["éß", "éßéß a", "xéß漢é é", "é", *hostile_texts]
    flats = [make_engine(name, tokenizer_json).encode_batch(texts) for name in ("native", "hf")]
    assert np.array_equal(flats[0][0], flats[1][0]) and np.array_equal(flats[0][1], flats[1][1])


def test_a_tokenizer_that_panics_when_it_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def panic(text: str) -> None:
        raise type("PanicException", (BaseException,), {})("no\nway")

    folder = save(_word_level(), tmp_path / "tokenizer")
    monkeypatch.setattr("beam_pipeline.tokenization.description.load_tokenizer", panic)
    with pytest.raises(UsageError, match="tokenizer: cannot be loaded, or cannot encode a word: no way"):
        describe_tokenizer(str(folder))


def test_only_errors_of_libraries_become_errors_of_documents():
    for error in (IndexError("ours"), KeyboardInterrupt(), DataError("data")):
        with pytest.raises(type(error)), library_errors():
            raise error
    with pytest.raises(EncodingError, match=r"^a b$"), library_errors():
        raise Exception("a\nb")


def test_only_messages_about_panics_are_hidden(capfd: pytest.CaptureFixture[str]):
    tokenizer = _panicking()
    with hidden_panics(), hidden_panics():
        os.write(2, b"before\n\nprogress")
        for _ in range(200):  # at once, not at the end of the block
            if (stderr := capfd.readouterr().err) or time.sleep(0.05):
                break
        with pytest.raises(EncodingError), library_errors():
            tokenizer.encode(SLOW)
        os.write(2, b"\nafter\n")
    assert stderr + capfd.readouterr().err in ("before\n\nprogress\nafter\n", "before\n\nprogressafter\n")
    os.write(2, b"still here\n")
    assert capfd.readouterr().err == "still here\n"
