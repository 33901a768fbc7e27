"""The check of an engine on a sample of a run's documents detects wrong ids."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from beam_pipeline.engines import sample_check
from beam_pipeline.engines.engine import make_engine
from beam_pipeline.engines.sample_check import SampleCheck
from beam_pipeline.native import words
from beam_pipeline.sources.units import DocumentBatch
from beam_pipeline.support.errors import DataError, EngineMismatch
from beam_pipeline.support.texts import Texts
from beam_pipeline.verbs import prepare
from tests.beam_pipeline.runs import PROGRAM, arguments, content
from tokenmill_reader.format.names import MANIFEST

LENGTH = ["--max_length", "32"]


def batch_of(texts: list[str]) -> DocumentBatch:
    encoded = Texts.of(texts)
    return DocumentBatch("folder/file.txt", encoded, encoded.starts)


@pytest.fixture
def break_engine_on(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Replaces the engine with one that gives wrong ids for texts with this word."""

    def replace_model(word: str) -> None:
        correct_encode = words.WordModel.encode

        def encode(self: words.WordModel, pieces: Sequence[str], threads: int = 1) -> words.Flat:
            ids, lengths = correct_encode(self, pieces, threads)
            ids = ids.copy()
            for number, end in enumerate(np.cumsum(lengths).tolist()):
                if word in pieces[number]:
                    ids[end - 1] += 1
            return ids, lengths

        monkeypatch.setattr(words.WordModel, "encode", encode)

    return replace_model


def test_a_wrong_engine_is_found(
    make_tokenizer: Callable[[str], str], break_engine_on: Callable[[str], None]
):
    tokenizer_json = make_tokenizer("unigram")
    texts = [f"document {number}" for number in range(100)]
    batch = batch_of(texts)

    engine = make_engine("native", tokenizer_json)
    SampleCheck(engine, input_bytes=1000, seed=0)(batch, *engine.encode_batch(texts))

    break_engine_on("document 71")
    ids, lengths = engine.encode_batch(texts)
    with pytest.raises(
        EngineMismatch, match=r"the engine native and HF's tokenizer give different ids .* use --engine hf"
    ) as error:
        # Such a small input is checked as a whole.
        SampleCheck(engine, input_bytes=1000, seed=0)(batch, ids, lengths)
    assert (error.value.name, error.value.place) == ("folder/file.txt", int(batch.places[71]))

    hf = make_engine("hf", tokenizer_json)
    SampleCheck(hf, input_bytes=1000, seed=0)(batch, ids, lengths)  # HF is not compared with itself


def test_the_sample_is_small_and_a_function_of_places(
    make_tokenizer: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
):
    engine = make_engine("native", make_tokenizer("unigram"))
    checked: list[str] = []

    class Watched:
        def encode_batch_fast(self, texts: Sequence[str], add_special_tokens: bool):
            checked.extend(texts)
            return reference.encode_batch_fast(texts, add_special_tokens=add_special_tokens)

    reference, engine.reference = engine.reference, Watched()
    texts = [f"{number} " * 20 for number in range(40_000)]
    batch = batch_of(texts)
    size = int(batch.texts.sizes.sum())
    ids, lengths = engine.encode_batch(texts)
    samples = []
    monkeypatch.setattr(sample_check, "find_suspects", lambda texts: [])
    for seed, input_bytes in ((0, 10**12), (0, 10**12), (1, 10**12), (0, size)):
        SampleCheck(engine, input_bytes=input_bytes, seed=seed)(batch, ids, lengths)
        samples.append(checked.copy())
        checked.clear()
    assert samples[0] == samples[1] != samples[2]
    assert 5 <= len(samples[0]) <= 60  # about 1 in 2048
    assert 128 << 10 < sum(map(len, samples[3])) < 512 << 10


def test_unusual_text_is_checked_although_the_sample_misses_it(
    make_tokenizer: Callable[[str], str], break_engine_on: Callable[[str], None]
):
    engine = make_engine("native", make_tokenizer("unigram"))
    texts = [f"document {number} " * 20 for number in range(2000)]
    texts[1234] += "=" * 40
    batch = batch_of(texts)
    break_engine_on("=" * 40)
    ids, lengths = engine.encode_batch(texts)
    # In an input of this size, a document is in the sample with a probability of 1 in 2048, and every batch is checked
    # if its hash is among the lowest 64th: of 400 seeds, some.
    error_count = 0
    for seed in range(400):
        try:
            SampleCheck(engine, input_bytes=10**12, seed=seed)(batch, ids, lengths)
        except EngineMismatch as error:
            assert error.place == int(batch.places[1234])
            error_count += 1
    assert 1 <= error_count <= 20
    assert engine.fallbacks.documents == 0


def test_of_a_long_document_the_beginning_is_checked(
    make_tokenizer: Callable[[str], str], break_engine_on: Callable[[str], None]
):
    engine = make_engine("native", make_tokenizer("unigram"))
    texts = ["word " * 100_000]
    check = SampleCheck(engine, input_bytes=1000, seed=0)
    check(batch_of(texts), *engine.encode_batch(texts))
    break_engine_on("word")
    with pytest.raises(EngineMismatch):
        check(batch_of(texts), *engine.encode_batch(texts))


def test_a_run_with_a_wrong_engine_names_the_document(
    corpus: Path, tokenizer_folder: Path, tmp_path: Path, break_engine_on: Callable[[str], None]
):
    lines = corpus.read_text(encoding="utf-8").split("\n")
    number = next(index for index, line in enumerate(lines, 1) if index > 40 and line)
    break_engine_on(lines[number - 1])
    place = rf"{re.escape(str(corpus))}, line {number} \(byte \d+\), work unit 0: the engine native and HF's"
    with pytest.raises(DataError, match=place):
        prepare.main(arguments(corpus, tokenizer_folder, tmp_path / "out", *LENGTH))
    prepare.main(arguments(corpus, tokenizer_folder, tmp_path / "right", *LENGTH, "--engine", "hf"))


def test_engines_agree_in_a_whole_run(corpus: Path, tokenizer_folder: Path, tmp_path: Path):
    hf_output, auto_output = tmp_path / "hf", tmp_path / "auto"
    prepare.main(arguments(corpus, tokenizer_folder, hf_output, *LENGTH, "--engine", "hf"))
    # In a process of its own, where the engine may use several threads.
    command = [*PROGRAM, *arguments(corpus, tokenizer_folder, auto_output, *LENGTH)]
    subprocess.run(command, check=True, capture_output=True)
    files, manifests = [content(folder / "train") for folder in (hf_output, auto_output)], []
    for dataset_files in files:
        manifests.append(json.loads(dataset_files.pop(MANIFEST)))
        del manifests[-1]["engines"], manifests[-1]["checksum"]
    assert files[0] == files[1] and manifests[0] == manifests[1]
