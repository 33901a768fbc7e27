from __future__ import annotations

import json

import pytest

from beam_pipeline.options.command_line import parse
from beam_pipeline.options.input_options import DatasetConfig, InputConfig, MixItem, parse_mix
from beam_pipeline.options.prepare_options import PrepareConfig
from beam_pipeline.options.tokenizer_options import TrainTokenizerConfig
from beam_pipeline.support.errors import UsageError

REST = ["--tokenizer", "t", "--output", "o"]


def parse_input(*argv: str) -> InputConfig:
    return parse(PrepareConfig, [*argv, *REST])[0].input


def test_defaults_are_those_of_the_dataclass() -> None:
    assert parse_input("--input", "a", "b") == InputConfig(input=("a", "b"))


def test_every_option_arrives() -> None:
    config = parse_input(
        *["--input", "a", "--input_format", "text", "--document", "file", "--text_key", "body"],
        *["--unit_bytes", "7", "--seed", "3"],
    )
    assert config == InputConfig(
        input=("a",), input_format="text", document="file", text_key="body", unit_bytes=7, seed=3
    )


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("a*1", [("a", 1, 0.0)]),
        ("a.jsonl*2,b.jsonl*0.5", [("a.jsonl", 2, 0.0), ("b.jsonl", 0, 0.5)]),
        ("x/*.txt*2.1, gs://b/**/y-[0-9]*3", [("x/*.txt", 2, 0.1), ("gs://b/**/y-[0-9]", 3, 0.0)]),
        ("x/**1e1", [("x/*", 10, 0.0)]),
    ],
)
def test_mix(text: str, items: list[tuple[str, int, float]]) -> None:
    assert parse_mix(text) == tuple(MixItem(*item) for item in items)
    assert parse_input("--mix", text).mix == parse_mix(text)


@pytest.mark.parametrize(
    "text",
    ["", "a", "a*", "a*x", "*2", "a*0", "a*-1", "a*nan", "a*inf", "a*1001", "a*1,", "a*1,b", "a*1,,b*2"],
)
def test_a_mix_without_proper_weights(text: str) -> None:
    with pytest.raises(UsageError, match="is not GLOB\\*WEIGHT with a weight above 0 and up to 1000"):
        parse_input("--mix", text)


def test_a_dataset() -> None:
    config = parse_input(
        *["--dataset_name", "Salesforce/wikitext", "--dataset_config", "wikitext-103-raw-v1"],
        *["--dataset_revision", "main", "--dataset_cache", "gs://b/c"],
    )
    assert config.dataset == DatasetConfig(
        "Salesforce/wikitext", "wikitext-103-raw-v1", "train", "main", "gs://b/c"
    )


@pytest.mark.parametrize(
    ("options", "read", "split_names"),
    [
        ([], "train", ["train"]),
        (["--split", "validation"], "validation", ["validation"]),
        (["--dataset_split", "train[:10%]"], "train[:10%]", ["train"]),
        (["--split", "small", "--dataset_split", "train+test"], "train+test", ["small"]),
        (["--splits", "a=0.5,b=0.5"], "train", ["a", "b"]),
        (["--splits", "a=0.5,b=0.5", "--dataset_split", "test"], "test", ["a", "b"]),
    ],
)
def test_split_names_what_is_read_and_what_is_written(
    options: list[str], read: str, split_names: list[str]
) -> None:
    config, _ = parse(PrepareConfig, ["--dataset_name", "d", *options, *REST])
    assert config.input.dataset.split == read
    assert list(config.split_names) == split_names


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (["--input", "a", "--dataset_config", "c"], "--dataset_config requires --dataset_name"),
        (["--mix", "a*1", "--dataset_split", "s"], "--dataset_split requires --dataset_name"),
        (["--input", "a", "--dataset_cache", "c"], "--dataset_cache requires --dataset_name"),
        (["--dataset_name", "d", "--document", "file"], "--document file: does not apply to a dataset"),
        (
            ["--dataset_name", "d", "--input_format", "text"],
            "--input_format text: does not apply to a dataset",
        ),
        (
            ["--dataset_name", "d", "--split", "train[:10%]"],
            r"use --dataset_split 'train\[:10%\]' --split NAME",
        ),
        (["--input", "a", "--unit_bytes", "0"], "--unit_bytes 0: must be from 1 to 9007199254740991"),
    ],
)
def test_what_does_not_fit_together(argv: list[str], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        parse_input(*argv)


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        ([], "missing: --input or --mix or --dataset_name"),
        (["--input", "a", "--mix", "b*1"], "--mix: not allowed with --input"),
        (["--mix", "b*1", "--dataset_name", "d"], "--dataset_name: not allowed with --mix"),
    ],
)
def test_one_input_is_needed(argv: list[str], reason: str) -> None:
    with pytest.raises(UsageError, match=f"^{reason}"):
        parse_input(*argv)


def test_the_identity_tells_mixtures_apart_but_not_their_order() -> None:
    def identity(*argv: str) -> str:
        return json.dumps(parse(PrepareConfig, [*argv, *REST])[0].identity(), sort_keys=True)

    assert identity("--mix", "a*2,b*0.5") == identity("--mix", "b*0.50,a*2.0")
    assert identity("--mix", "a*2,b*0.5") != identity("--mix", "a*2,b*0.6")
    assert identity("--input", "a") == identity("--input", "b"), "the files are in the list of inputs"
    assert identity("--input", "a") != identity("--input", "a", "--document", "paragraph")
    assert identity("--dataset_name", "d") != identity("--dataset_name", "d", "--dataset_split", "test")


def test_train_tokenizer_takes_the_same_options() -> None:
    config, _ = parse(
        TrainTokenizerConfig, ["--dataset_name", "d", "--dataset_split", "test", "--output", "o"]
    )
    assert config.input == InputConfig(dataset=DatasetConfig("d", split="test"))
    config, _ = parse(TrainTokenizerConfig, ["--mix", "a*1.5", "--document", "paragraph", "--output", "o"])
    assert config.input == InputConfig(mix=(MixItem("a", 1, 0.5),), document="paragraph")


@pytest.mark.parametrize(
    ("options", "records"),
    [
        ([], 5000),
        (["--max_length", "8192"], 5000),
        (["--max_length", "4096", "--segment_ids", "--position_ids"], 5000),
        (["--max_length", "131072"], 512),
        (["--max_length", "131072", "--no_attention_mask"], 682),
        (["--max_length", "1048576", "--segment_ids", "--position_ids"], 36),
        (["--max_length", "1048576", "--shard_size", "5000"], 5000),
        (["--max_length", "1048576", "--num_shards", "7"], None),
    ],
)
def test_a_shard_of_long_rows_has_fewer_records_by_default(options: list[str], records: int | None) -> None:
    config, _ = parse(PrepareConfig, ["--input", "a", *REST, *options])
    assert config.shard_size == config.identity()["shard_size"] == records
