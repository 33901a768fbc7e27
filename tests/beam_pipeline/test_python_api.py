"""The verbs as Python functions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import tokenmill
from beam_pipeline.options.command_line import parse
from beam_pipeline.options.from_python import completed
from beam_pipeline.options.verbs import PrepareConfig
from beam_pipeline.verbs import prepare as verb
from tests.beam_pipeline.runs import arguments, content


def config_of(
    source: Path | str, tokenizer: Path | str, output: Path | str, **options: object
) -> PrepareConfig:
    input_options = tokenmill.InputConfig(input=(str(source),))
    return tokenmill.PrepareConfig(
        input=input_options, tokenizer=str(tokenizer), output=str(output), **options
    )


def test_prepare_writes_the_bytes_of_the_command_line_and_prints_nothing(
    corpus: Path, tokenizer_folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    options = ["--splits", "train=0.8,validation=0.2", "--seed", "7", "--max_length", "64"]
    verb.main(arguments(corpus, tokenizer_folder, tmp_path / "command", *options))
    capfd.readouterr()
    splits = (("train", 0.8), ("validation", 0.2))
    config = config_of(corpus, tokenizer_folder, tmp_path / "python", splits=splits, seed=7, max_length=64)
    dataset = tokenmill.prepare(config, direct_running_mode="in_memory")
    assert capfd.readouterr().out == ""
    assert content(tmp_path / "python" / "train") == content(tmp_path / "command" / "train")
    assert dataset.splits.keys() == {"train", "validation"}
    rows = dataset.open("validation")
    assert len(rows) == dataset.splits["validation"].rows
    assert dataset.to_json()["splits"]["train"]["max_length"] == 64
    assert "<td>validation</td>" in dataset._repr_html_()
    assert tokenmill.verify(tmp_path / "python")


def test_a_damaged_dataset_is_a_result_with_defects(
    corpus: Path, tokenizer_folder: Path, tmp_path: Path
) -> None:
    dataset = tokenmill.prepare(config_of(corpus, tokenizer_folder, tmp_path / "<i>out"))
    shard = next((tmp_path / "<i>out" / "train").glob("*.tfrecord"))
    shard.write_bytes(shard.read_bytes()[:-1])
    verification = tokenmill.verify(dataset.output)
    assert not verification
    assert shard.name in verification.defects[0]
    assert verification.to_json()["defects"] == len(verification.defects)
    assert "<i>" not in verification._repr_html_()


def test_estimate_writes_nothing_and_a_tokenizer_can_be_trained(corpus: Path, tmp_path: Path) -> None:
    input_options = tokenmill.InputConfig(input=(str(corpus),))
    trained = tokenmill.train_tokenizer(
        tokenmill.TrainTokenizerConfig(
            input=input_options, model="bpe", vocab_size=400, output=str(tmp_path / "tokenizer")
        )
    )
    assert trained.vocab_size == 400
    assert trained.to_json()["sample_documents"] == 1000
    config = config_of(corpus, trained.output, tmp_path / "out")
    estimated = tokenmill.estimate(config)
    assert estimated.documents == pytest.approx(1000, rel=0.05)
    assert estimated.to_json()["splits"]["train"]["rows"] == estimated.splits["train"].rows > 0
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_length": 4}, "max_length=4: must be from 8"),
        ({"packing": "bestfit"}, "packing='bestfit': must be one of concat"),
        ({"seed": True}, "seed=True: must be an int"),
        ({"shard_size": 5, "num_shards": 2}, "contradict each other"),
        ({"splits": (("a", 0.5),)}, "add up to 0.5"),
        ({"splits": (("a", "x"),)}, "NAME=SHARE"),
        ({"input": tokenmill.InputConfig()}, "one of input, mix, dataset_name is required"),
        ({"input": tokenmill.InputConfig(input="a.txt")}, "must be a tuple of str"),
        ({"estimate": True}, "call tokenmill.estimate"),
        ({"nonsense": 1}, "unknown option --nonsense"),
    ],
)
def test_a_wrong_option_is_an_error_before_anything_is_written(
    tmp_path: Path, options: dict[str, object], message: str
) -> None:
    beam_options = {"nonsense": options.pop("nonsense")} if "nonsense" in options else {}
    values = {"input": tokenmill.InputConfig(input=("a",)), "tokenizer": "t", "output": str(tmp_path / "out")}
    with pytest.raises(tokenmill.UsageError, match=message):
        tokenmill.prepare(tokenmill.PrepareConfig(**{**values, **options}), **beam_options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, []),
        ({"seed": 3}, ["--seed", "3"]),
        (
            {"packing": "none", "output_format": "megatron"},
            ["--packing", "none", "--output_format", "megatron"],
        ),
        (
            {"max_length": 65536, "position_ids": True, "attention_mask": False},
            ["--max_length", "65536", "--position_ids", "--no_attention_mask"],
        ),
    ],
)
def test_options_set_in_python_equal_those_of_a_command_line(
    options: dict[str, object], words: list[str]
) -> None:
    parsed, _ = parse(PrepareConfig, arguments("x", "t", "o", *words))
    assert completed(config_of("x", "t", "o", **options)) == parsed


def test_importing_tokenmill_imports_neither_beam_nor_numpy() -> None:
    code = (
        "import sys, tokenmill; tokenmill.PrepareConfig; print({'apache_beam', 'numpy'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
