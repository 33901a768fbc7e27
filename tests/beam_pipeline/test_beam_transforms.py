"""Datasets from the documents of one's own pipelines."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

import tokenmill
from beam_pipeline.steps import documents as document_steps
from beam_pipeline.steps import write
from beam_pipeline.steps.documents import unit_of
from beam_pipeline.support.errors import DataError, UsageError
from beam_pipeline.verbs import inspection
from tests.beam_pipeline.conftest import make_documents
from tests.beam_pipeline.runs import content, defects
from tokenmill.beam import Tokenize, WriteDataset
from tokenmill_reader import Dataset

RUNNER = "apache_beam.runners.portability.fn_api_runner.fn_runner.FnApiRunner"  # the DirectRunner may choose another
HOSTILE_KEYS = ["", " ", "a\nb", '"key"', "\0", "../../x", "{}", "日本", "-" * 5000, "</s>", "\u2028", "a\rb"]


@pytest.fixture
def write_documents(tmp_path: Path, tokenizer_folder: Path) -> Callable[..., tokenmill.PreparedDataset]:
    """Runs a pipeline that writes documents to tmp_path / name."""

    def run(
        name: str,
        source: list[Any],
        *,
        units: int = 5,
        transform: beam.PTransform | None = None,
        beam_options: list[str] | None = None,
        **options: Any,
    ) -> tokenmill.PreparedDataset:
        values = {"max_length": 32, "shard_size": 50, "tokenizer": str(tokenizer_folder)} | options
        pipeline_options = PipelineOptions(beam_options or [])
        folders = {"documents": str(tmp_path / "documents" / name), "output": str(tmp_path / name)}
        with (
            WriteDataset(units=units, pipeline_options=pipeline_options, **folders, **values) as writer,
            beam.Pipeline(RUNNER, options=pipeline_options) as pipeline,
        ):
            created = pipeline | beam.Create(source, reshuffle=False)
            if transform is not None:
                created |= transform
            created | writer
        return writer.dataset

    return run


def keyed(texts: list[str]) -> list[tuple[str, str]]:
    return [(f"document/{number}", text) for number, text in enumerate(texts)]


def rows_of(folder: Path) -> Counter[bytes]:
    return Counter(row["input_ids"].tobytes() for row in Dataset.open(folder))


def dataset_bytes(folder: Path) -> dict[str, bytes]:
    """The files of a dataset, without those that name the folder of its documents."""
    names_input = ("manifest.json", "units.jsonl", "inputs.jsonl", "report.html")
    return {name: data for name, data in content(folder).items() if not name.endswith(names_input)}


def test_the_same_documents_give_the_same_bytes_in_any_order_and_bundles(
    write_documents: Callable[..., tokenmill.PreparedDataset], documents: list[str], tmp_path: Path
) -> None:
    source = [*keyed(documents), *((key, f"text of {key}") for key in HOSTILE_KEYS)]
    splits = (("train", 0.8), ("test", 0.2))
    dataset = write_documents("a", source, splits=splits)
    assert defects(tmp_path / "a") == []
    assert sum(split.documents for split in dataset.splits.values()) == len(source)
    shuffled = random.Random(1).sample(source, len(source))
    workers = ["--direct_running_mode=multi_threading", "--direct_num_workers=2"]
    write_documents("b", shuffled, splits=splits, transform=beam.Reshuffle(), beam_options=workers)
    assert dataset_bytes(tmp_path / "b") == dataset_bytes(tmp_path / "a")
    documents_a, documents_b = (content(tmp_path / "documents" / name) for name in "ab")
    assert documents_a == documents_b
    lines = [json.loads(line) for data in documents_a.values() for line in data.splitlines()]
    assert sorted((line["key"], line["text"]) for line in lines) == sorted(source)


def test_one_document_of_its_own_per_row_gives_the_rows_that_prepare_makes_of_files(
    write_documents: Callable[..., tokenmill.PreparedDataset],
    documents: list[str],
    tokenizer_folder: Path,
    tmp_path: Path,
) -> None:
    source = tmp_path / "source.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    input_options = tokenmill.InputConfig(input=(str(source),))
    options = {"packing": "pad", "max_length": 32, "tokenizer": str(tokenizer_folder)}
    tokenmill.prepare(tokenmill.PrepareConfig(input=input_options, output=str(tmp_path / "files"), **options))
    write_documents("pipeline", keyed(documents), **options)
    assert rows_of(tmp_path / "pipeline" / "train") == rows_of(tmp_path / "files" / "train")


def test_units_without_documents_are_no_problem_and_inspect_names_the_line_with_the_key(
    write_documents: Callable[..., tokenmill.PreparedDataset],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    forged = "a </s> that forges no control token"
    dataset = write_documents("out", [("key", forged)], units=7, packing="pad", max_length=128)
    assert dataset.splits["train"].documents == 1
    assert defects(tmp_path / "out") == []
    row = dataset.open("train")[0]
    assert int((row["input_ids"] == 2).sum()) == 1  # the template's own
    capsys.readouterr()
    inspection.main([str(tmp_path / "out"), "--record", "train:0:0"])
    name = document_steps.file_name(unit_of("key", 7), 7)
    assert f"{name}, line 1" in capsys.readouterr().out


def test_ten_thousand_documents_lose_no_token(
    write_documents: Callable[..., tokenmill.PreparedDataset], tmp_path: Path, tokenizer_folder: Path
) -> None:
    source = keyed(make_documents(10_000, seed=5))
    dataset = write_documents("out", source, dedup="exact", max_length=128, shard_size=1000)
    assert defects(tmp_path / "out") == []
    with beam.Pipeline(RUNNER) as pipeline:
        ids = pipeline | beam.Create(dict(source[::-1]).items()) | Tokenize(str(tokenizer_folder))
        lengths = ids | beam.MapTuple(lambda key, ids: len(ids)) | beam.CombineGlobally(sum)
        lengths | beam.Map(lambda total: np.save(tmp_path / "total.npy", total))
    repeated = dataset.excluded["duplicate_documents"]
    assert dataset.splits["train"].documents == 10_000 - repeated
    if not repeated:
        assert dataset.splits["train"].tokens == np.load(tmp_path / "total.npy")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ([], "contains no documents"),
        ([("blank", " \n")], "contains no documents"),
        ([("a", "x"), ("b", 5)], "document 'b': its text is of type int, not str"),
        ([(7, "x")], "document 7: its key is of type int"),
        (["text"], "'text': is not a document: a pair of its key and its text"),
        ([("same", "x"), ("other", "y"), ("same", "z")], "document 'same': several documents have this key"),
    ],
)
def test_wrong_documents_are_an_error_that_names_them_and_leave_nothing(
    write_documents: Callable[..., tokenmill.PreparedDataset], tmp_path: Path, source: list[Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        write_documents("out", source)
    assert content(tmp_path) == {}


def test_half_of_a_surrogate_pair_is_an_error_with_the_key() -> None:
    with pytest.raises(DataError, match="document 'a': its text has half of a surrogate pair at character 1"):
        document_steps.check_document(("a", "x\ud800"))


def test_a_pipeline_that_fails_leaves_no_dataset_and_the_next_one_can_write_there(
    write_documents: Callable[..., tokenmill.PreparedDataset],
    documents: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("stopped before the manifests")

    with monkeypatch.context() as patch:
        patch.setattr(write, "commit", fail)
        with pytest.raises(RuntimeError, match="stopped before the manifests"):
            write_documents("out", keyed(documents))
    assert content(tmp_path) == {}
    write_documents("out", keyed(documents))
    assert defects(tmp_path / "out") == []


def test_a_second_run_is_refused_unless_it_overwrites(
    write_documents: Callable[..., tokenmill.PreparedDataset], documents: list[str], tmp_path: Path
) -> None:
    write_documents("out", keyed(documents))
    first_content = content(tmp_path)
    with pytest.raises(UsageError, match="contains another run's dataset"):
        write_documents("out", keyed(documents[:10]))
    assert content(tmp_path) == first_content
    write_documents("out", keyed(documents[:10]), overwrite=True)
    assert defects(tmp_path / "out") == []


def test_wrong_uses_are_errors_before_any_document_is_read(
    write_documents: Callable[..., tokenmill.PreparedDataset], tmp_path: Path, tokenizer_folder: Path
) -> None:
    folders = {"tokenizer": str(tokenizer_folder), "output": str(tmp_path / "out")}
    for options, message in (
        ({"units": 0}, "units=0: must be an int from 1"),
        ({"resume": True}, "resume: does not apply"),
        ({"max_lenght": 8}, "unexpected keyword argument 'max_lenght'"),
        ({"max_length": 4}, "max_length=4: must be from 8"),
    ):
        with pytest.raises(UsageError, match=message):
            WriteDataset(**{"documents": str(tmp_path / "documents"), "units": 2} | folders | options)
    writer = WriteDataset(documents=str(tmp_path / "documents"), units=2, **folders)
    with pytest.raises(UsageError, match="use WriteDataset in a `with` block"):
        beam.Pipeline(RUNNER) | beam.Create([("a", "b")]) | writer
    with pytest.raises(UsageError, match="the pipeline has not written it"), writer:
        pass
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents" / "mine.jsonl").write_text("{}")
    with pytest.raises(UsageError, match=r"contains .*mine\.jsonl; choose an empty folder$"), writer:
        pass
    assert set(content(tmp_path)) == {"documents/mine.jsonl"}
    inside = WriteDataset(documents=str(tmp_path / "out" / "train"), units=2, **folders)
    with pytest.raises(UsageError, match="must be neither inside of"), inside:
        pass


def test_tokenize_gives_the_ids_of_the_tokenizer_with_its_special_tokens(
    documents: list[str], tokenizer_folder: Path, tmp_path: Path
) -> None:
    from tokenizers import Tokenizer

    source = [*keyed(documents[:50]), ("empty", ""), ("twice", "one"), ("twice", "two")]
    with beam.Pipeline(RUNNER) as pipeline:
        ids = pipeline | beam.Create(source) | Tokenize(str(tokenizer_folder))
        lines = ids | beam.MapTuple(lambda key, ids: json.dumps([key, ids.tolist()]))
        lines | beam.io.WriteToText(str(tmp_path / "ids"), shard_name_template="")
    reference = Tokenizer.from_file(str(tokenizer_folder / "tokenizer.json"))
    expected = [[key, reference.encode(text).ids] for key, text in source]
    assert sorted(map(json.loads, (tmp_path / "ids").read_text().splitlines())) == sorted(expected)
