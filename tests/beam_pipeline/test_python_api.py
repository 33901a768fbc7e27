"""The verbs as Python functions."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
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


def test_annotate_measures_what_prepare_then_decides_by(
    corpus: Path, tokenizer_folder: Path, tmp_path: Path
) -> None:
    input_options = tokenmill.InputConfig(input=(str(corpus),))
    annotate = tokenmill.AnnotateConfig(
        input=input_options, measure=("pii",), output=str(tmp_path / "measured")
    )
    attributes = tokenmill.annotate(annotate)
    assert attributes.documents == 1000 and attributes.columns["characters"] == "int64"
    assert tokenmill.annotate(replace(annotate, resume=True)).seconds is None
    curation = tokenmill.CurationConfig(attributes=attributes.output, keep="characters > 0 and document < 9")
    dataset = tokenmill.prepare(config_of(corpus, tokenizer_folder, tmp_path / "out", curation=curation))
    assert 0 < dataset.splits["train"].documents < 1000


def test_estimate_writes_nothing_and_a_tokenizer_can_be_trained(corpus: Path, tmp_path: Path) -> None:
    input_options = tokenmill.InputConfig(input=(str(corpus),))
    trained = tokenmill.train_tokenizer(
        tokenmill.TrainTokenizerConfig(
            input=input_options, model="bpe", vocab_size=400, output=str(tmp_path / "tokenizer")
        )
    )
    assert trained.vocab_size == 400
    assert trained.to_json()["documents"] == 1000
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
        ({"splits": {"train": 1.0}}, "must be a tuple of .name, share. pairs"),
        ({"splits": "train=1"}, "must be a tuple of .name, share. pairs"),
        ({"tokenizer": None}, "tokenizer=None: must be a str"),
        ({"input": tokenmill.InputConfig()}, "one of input, mix, dataset_name is required"),
        ({"input": tokenmill.InputConfig(input="a.txt")}, "must be a tuple of str"),
        ({"estimate": True}, "call tokenmill.estimate"),
        ({"nonsense": 1}, "unknown option --nonsense"),
        (
            {"direct_num_workers": "many"},
            "--direct_num_workers: invalid int value: 'many' .an option of Beam.",
        ),
    ],
)
def test_a_wrong_option_is_an_error_before_anything_is_written(
    tmp_path: Path, options: dict[str, object], message: str
) -> None:
    names = options.keys() & {"nonsense", "direct_num_workers"}
    beam_options, options = (
        {name: options[name] for name in names},
        {name: value for name, value in options.items() if name not in names},
    )
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


@pytest.fixture
def other_child() -> Iterator[subprocess.Popen]:
    """A process that the program has started, and that no run may touch."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        yield child
        child.communicate(b"\n")
    assert child.returncode == 0


@pytest.mark.parametrize("mode", ["in_memory", pytest.param("multi_processing", marks=pytest.mark.wide)])
def test_ctrl_c_in_a_notebook_stops_the_run_and_nothing_else(
    mode: str, corpus: Path, tokenizer_folder: Path, tmp_path: Path, other_child: subprocess.Popen
) -> None:
    config = config_of(corpus, tokenizer_folder, tmp_path / "out", max_length=32, shard_size=60)

    def interrupt() -> None:
        deadline = time.monotonic() + 120
        while not list(tmp_path.glob("out/train/*.tfrecord")) and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    previous = signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs ignore it
    before = set(threading.enumerate())
    handlers = list(logging.getLogger().handlers)
    threading.Thread(target=interrupt).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            tokenmill.prepare(config, direct_running_mode=mode)
    finally:
        signal.signal(signal.SIGINT, previous)
    assert other_child.poll() is None
    assert logging.getLogger().handlers == handlers
    if mode == "in_memory":
        started = set(threading.enumerate()) - before
        assert not [thread.name for thread in started if thread.name.startswith("pipeline")], (
            "the run goes on"
        )
    resumed = tokenmill.prepare(replace(config, resume=True))
    assert resumed.splits["train"].documents == 1000
    assert tokenmill.verify(tmp_path / "out")


def test_options_of_another_verb_are_a_type_error() -> None:
    for value in (None, {"input": "x"}, tokenmill.PrepareConfig):
        with pytest.raises(TypeError, match=r"must be a tokenmill\.TrainTokenizerConfig, not "):
            tokenmill.train_tokenizer(value)


def test_runs_in_several_threads_keep_the_hook_of_the_program(
    corpus: Path, tokenizer_folder: Path, tmp_path: Path
) -> None:
    hook = threading.excepthook
    with ThreadPoolExecutor(2) as pool:
        configs = [config_of(corpus, tokenizer_folder, tmp_path / name) for name in ("a", "b")]
        first, second = pool.map(tokenmill.prepare, configs)
    assert threading.excepthook is hook
    assert content(tmp_path / "a" / "train") == content(tmp_path / "b" / "train")
    assert first.splits == second.splits
