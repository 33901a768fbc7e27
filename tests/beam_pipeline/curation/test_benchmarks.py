"""Reading benchmarks, also damaged and hostile ones."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_pipeline.curation import benchmarks
from beam_pipeline.curation.benchmarks import display_names, read_benchmarks
from beam_pipeline.support.errors import DataError, UsageError

RECORDS = [{"question": "what is it", "answer": ["a", "b"]}, {"question": "", "answer": ["x"]}]


def write(path: Path, records: list[dict]) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def test_files_of_all_formats_have_the_same_items(tmp_path):
    write(tmp_path / "a.jsonl", RECORDS)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress((tmp_path / "a.jsonl").read_bytes()))
    pq.write_table(pa.Table.from_pylist(RECORDS), tmp_path / "c.parquet")
    read = read_benchmarks([str(tmp_path / "*.*"), str(tmp_path / "a.jsonl")], ["question", "answer"])
    assert [Path(benchmark.path).name for benchmark in read] == ["a.jsonl", "b.jsonl.gz", "c.parquet"]
    assert [benchmark.items for benchmark in read] == [[("what is it", "a\nb"), ("", "x")]] * 3


def test_lines_of_text_are_items(tmp_path):
    (tmp_path / "a.txt").write_text("first item\n\nsecond item\n")
    [read] = read_benchmarks([str(tmp_path / "a.txt")], ["text"])
    assert read.items == [("first item",), ("second item",)]
    with pytest.raises(
        UsageError, match=r"a\.txt: an item of a text file is one text, without the fields q and a"
    ):
        read_benchmarks([str(tmp_path / "a.txt")], ["q", "a"])


def test_folders_of_saved_datasets_are_read_with_all_splits(tmp_path):
    datasets = pytest.importorskip("datasets")
    splits = {name: datasets.Dataset.from_list([{"text": f"the {name}"}]) for name in ("test", "train")}
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "saved")
    read = read_benchmarks([str(tmp_path / "saved")], ["text"])
    assert [benchmark.items for benchmark in read] == [[("the test",)], [("the train",)]]


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (b"", UsageError, r"--decontaminate .*b\.jsonl: has no items; leave it out"),
        (b'{"text": ""}\n{"text": " "}\n', UsageError, "has no items"),
        (b'{"question": "x"}\n', UsageError, r"no key 'text' \(set by --decontaminate_fields\)"),
        (
            b'{"text": "a"}\n{"q": "x"}\n',
            DataError,
            r"line 2 \(byte 14\): no key 'text' .*take it out of the file",
        ),
        (b'{"text": "a"}\n{"text": null}\n', DataError, "line 2 .*has type NoneType"),
        (
            b'{"text": "a"}\n{"text": "\xff"}\n',
            DataError,
            "line 2 .*invalid UTF-8.*; benchmarks must be UTF-8; correct the record",
        ),
        (b'{"text": "a"}\n{"text": \n', DataError, r"line 2 .*broken JSON"),
    ],
)
def test_damaged_files_are_errors_with_the_place(tmp_path, content, error, message):
    (tmp_path / "b.jsonl").write_bytes(content)
    with pytest.raises(error, match=message):
        read_benchmarks([str(tmp_path / "b.jsonl")], ["text"])


def test_missing_files_are_errors_of_the_option(tmp_path):
    with pytest.raises(UsageError, match=r"--decontaminate .*none\.jsonl: .*no"):
        read_benchmarks([str(tmp_path / "none.jsonl")], ["text"])
    pq.write_table(pa.table({"a": [1]}), tmp_path / "a.parquet")
    with pytest.raises(UsageError, match=r"no column 'text' \(set by --decontaminate_fields\)"):
        read_benchmarks([str(tmp_path / "a.parquet")], ["text"])


@pytest.mark.parametrize("compress", [False, True])
def test_a_corpus_instead_of_a_benchmark_is_refused_before_it_is_read_whole(tmp_path, monkeypatch, compress):
    monkeypatch.setattr(benchmarks, "MOST_BYTES", 1 << 16)
    data = json.dumps({"text": "word " * 20000}).encode()
    path = tmp_path / ("b.jsonl.gz" if compress else "b.jsonl")
    path.write_bytes(gzip.compress(data) if compress else data)
    with pytest.raises(UsageError, match=r"the benchmarks have more than 65\.5 kB of text"):
        read_benchmarks([str(path)], ["text"])


def test_names_are_as_short_as_they_can_be():
    assert display_names(["gs://b/x/test.jsonl", "gs://b/y/test.jsonl"]) == ["x/test.jsonl", "y/test.jsonl"]
    assert display_names(["/a.jsonl"]) == ["a.jsonl"]
