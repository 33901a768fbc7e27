"""Limits are checked before anything is tokenized, and a vocabulary larger than any today fits each format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from beam_pipeline.dataset.manifest import read_manifest
from beam_pipeline.formats import mds
from beam_pipeline.support import memory
from beam_pipeline.support.errors import DataError, UsageError
from beam_pipeline.verbs import checked_run, convert, prepare
from tests.beam_pipeline.runs import arguments, defects
from tokenmill_reader import Dataset
from tokenmill_reader.format import limits

LARGE = 2**22 + 5


@pytest.fixture(scope="module")
def large_vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer whose largest id is LARGE. Most ids have no token, so that it loads in no time."""
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1, "b": 2}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    folder = tmp_path_factory.mktemp("large")
    content = json.loads(tokenizer.to_str())
    content["model"]["vocab"]["b"] = LARGE  # `save` would print every id without a token
    (folder / "tokenizer.json").write_text(json.dumps(content))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    return folder


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "in.txt").write_text("a b a b a b a b\n")
    return tmp_path / "in.txt"


@pytest.mark.parametrize("output_format", ["tfrecord", "arrayrecord", "parquet", "mds", "megatron"])
def test_more_than_four_million_ids(text: Path, large_vocabulary: Path, tmp_path: Path, output_format: str):
    options = ["--packing", "none"] if output_format == "megatron" else ["--max_length", "8"]
    out = tmp_path / "out"
    prepare.main(arguments(text, large_vocabulary, out, *options, "--output_format", output_format))
    assert read_manifest(str(out / "train"))["tokenizer"]["vocab_size"] == LARGE + 1
    assert defects(out) == []
    if output_format == "tfrecord":
        assert Dataset.open(out / "train")[0]["input_ids"].tolist() == [1, LARGE] * 4


@pytest.mark.parametrize(
    ("module", "limit", "options", "message"),
    [
        (checked_run, "MOST_IDS", [], " ids, but a dataset can have at most 10; "),
        (mds, "MOST_MDS_BYTES", ["--output_format", "mds", "--num_shards", "1"], "more --num_shards"),
        (mds, "MOST_MDS_BYTES", ["--output_format", "mds", "--shard_size", "99"], "smaller --shard_size"),
    ],
)
def test_what_exceeds_a_limit_is_refused_before_anything_is_written(
    corpus: Path, tokenizer_folder: Path, tmp_path: Path, monkeypatch, module, limit, options, message
):
    monkeypatch.setattr(module, limit, 10 if limit == "MOST_IDS" else 5000)
    with pytest.raises(UsageError) as error:
        prepare.main(arguments(corpus, tokenizer_folder, tmp_path / "out", "--max_length", "64", *options))
    assert message in str(error.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--seed", limits.SEEDS[1] + 1),
        ("--shard_size", limits.MOST_RECORDS + 1),
        ("--num_shards", limits.MOST_SHARDS + 1),
        ("--max_length", limits.MOST_TOKENS_PER_ROW + 1),
    ],
)
def test_values_that_a_manifest_cannot_have_are_refused(corpus, tokenizer_folder, tmp_path, option, value):
    with pytest.raises(UsageError, match=f"{option} {value}: must be from "):
        prepare.main(arguments(corpus, tokenizer_folder, tmp_path / "out", option, str(value)))


def test_one_shard_of_a_terabyte_is_refused(
    corpus: Path, tokenizer_folder: Path, tmp_path: Path, monkeypatch
):
    monkeypatch.setattr(memory, "available", lambda: 8 << 30)
    monkeypatch.setattr("beam_pipeline.sources.plan.InputPlan.bytes", 10**12)
    monkeypatch.setattr(
        checked_run, "check_documents", lambda *_: None
    )  # samples at places that do not exist
    command = arguments(corpus, tokenizer_folder, tmp_path / "out")
    with pytest.raises(
        UsageError, match=r"about 4\d\d\.\d GB of memory here.*use more --num_shards, since all"
    ):
        prepare.main([*command, "--num_shards", "1"])
    with pytest.raises(UsageError, match=r"about 4\d\d\.\d GB of memory here.*use a smaller --shard_size"):
        prepare.main([*command, "--shard_size", "1000000000"])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("output_format", ["parquet", "megatron"])
def test_a_document_of_too_many_tokens_is_an_error_and_not_wrapped_around(
    text: Path, tokenizer_folder: Path, tmp_path: Path, monkeypatch, output_format: str
):
    monkeypatch.setattr("beam_pipeline.dataset.document_shards.MOST_DOCUMENT_TOKENS", 3)
    options = ["--packing", "none", "--output_format", output_format]
    with pytest.raises(DataError, match=r"a document has [\d,]+ tokens, but can have at most 3; divide"):
        prepare.main(arguments(text, tokenizer_folder, tmp_path / "out", *options))


def test_convert_refuses_shards_that_the_format_cannot_have(dataset: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(mds, "MOST_MDS_BYTES", 5000)
    with pytest.raises(
        UsageError, match=r"train: --output_format mds: a shard would have .* when you prepare it"
    ):
        convert.main([str(dataset), "--output_format", "mds", "--output", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()
