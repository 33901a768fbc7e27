"""Fixtures of the pipeline's tests: a small corpus, a small tokenizer, and a dataset of them."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path

import apache_beam  # noqa: F401 - before the steps, so that tests of its runners can use them: see `pipelines`
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from beam_pipeline.verbs import prepare
from tests.beam_pipeline.beam_signatures import remember_signatures
from tests.beam_pipeline.runs import arguments
from tokenmill_reader.console.logs import log_to_stderr

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
log_to_stderr("beam_pipeline")
remember_signatures()

WIKITEXT = Path(__file__).resolve().parents[3] / "shared" / "corpora" / "wikitext-2" / "valid.txt"

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def make_documents(count: int, seed: int = 0) -> list[str]:
    """Generates reproducible documents: one line each, 1 to 60 words long, some with letters of several scripts."""
    rng = random.Random(seed)
    letters = "abcdefghijklmnopqrstuvwxyz" * 4 + "äößéñçœ" + "абвгд" + "αβγδ" + "日本語"
    words = ["".join(rng.choices(letters, k=rng.randint(1, 9))) for _ in range(600)]
    return [" ".join(rng.choices(words, k=rng.randint(1, 60))) for _ in range(count)]


@pytest.fixture(scope="session")
def documents() -> list[str]:
    return make_documents(1000)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory, documents: list[str]) -> Path:
    """A text file of the documents, one line each, with some blank lines."""
    path = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    lines = [document + ("\n\n" if index % 7 == 0 else "\n") for index, document in enumerate(documents)]
    path.write_text("".join(lines), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory, documents: list[str]) -> Path:
    """A folder with a Unigram tokenizer for AutoTokenizer, with about 400 tokens and RoBERTa's template."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=400, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(documents, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "mask_token": "<mask>", **names}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory, corpus: Path, tokenizer_folder: Path) -> Path:
    """A finished dataset with two splits, several work units and shards, and segment_ids. Tests must not change it."""
    folder = tmp_path_factory.mktemp("dataset") / "out"
    options = ["--unit_bytes", "20000", "--max_length", "32", "--shard_size", "300", "--segment_ids"]
    splits = ["--splits", "train=0.8,validation=0.2"]
    prepare.main(arguments(corpus, tokenizer_folder, folder, *splits, *options))
    return folder


@pytest.fixture
def gcs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator:
    """A stand-in for Cloud Storage with the bucket `data`, which this process and its children use."""
    # Imported late: most tests need no client of Google's.
    from tests.google_cloud.clients import redirect_google_cloud
    from tests.google_cloud.gcs import Gcs

    with Gcs("data", page_size=7) as stand_in:
        redirect_google_cloud(stand_in, tmp_path, monkeypatch)
        yield stand_in
