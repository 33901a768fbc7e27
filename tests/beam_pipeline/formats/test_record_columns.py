"""`--record_columns` and `--keep_columns`: columns of records beside rows, documents and removed documents."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer

from beam_pipeline.dataset.removed_documents import is_removed_file
from beam_pipeline.dataset.shards import assemble
from beam_pipeline.rows.blocks import RowBlock
from beam_pipeline.rows.documents import DocumentBlock
from beam_pipeline.sources.record_columns import column_table
from beam_pipeline.support.errors import UsageError
from beam_pipeline.verbs import convert, inspection, prepare
from beam_pipeline.views.reading import open_dataset
from tests.beam_pipeline.runs import defects

COLUMNS = ("lang", "score", "url")
VALUES = ["en", None, 0.5, ["a", {"b": None}], "", "é\u2028", "\ud800", True]
TEXTS = ["\\ud800" if value == "\ud800" else value for value in VALUES]
TEXTS[2:4] = ["0.5", '["a", {"b": null}]']
TEXTS[7] = "true"


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """200 documents, each of one word more than the one before."""
    path = tmp_path_factory.mktemp("columns") / "a.jsonl"
    rows = [
        {"text": "map " * (number + 1), "lang": VALUES[number % 8], "url": f"u{number}"}
        for number in range(200)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def run(source: Path, tokenizer: Path, out: Path, *options: str) -> Path:
    argv = [
        "--input",
        str(source),
        "--tokenizer",
        str(tokenizer),
        "--output",
        str(out),
        "--unit_bytes",
        "3000",
    ]
    prepare.main([*argv, "--record_columns", ",".join(COLUMNS), *options])
    assert defects(out) == []
    return out


def shards(out: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes()
        for path in sorted((out / "train").iterdir())
        if path.suffix in (".mds", ".parquet")
    }


def check_values(table: dict[str, list], tokenizer_folder: Path) -> set[int]:
    """Compares the values of each row with those of its document, and returns the numbers of the documents."""
    numbers = [int(url[1:]) for url in table["url"]]
    assert table["lang"] == [TEXTS[number % 8] for number in numbers]
    assert set(table["score"]) == {None}
    tokenizer = Tokenizer.from_file(str(tokenizer_folder / "tokenizer.json"))
    masks = table.get("attention_mask") or [[1] * len(ids) for ids in table["input_ids"]]
    tokens = Counter()
    for mask, number in zip(masks, numbers, strict=True):
        tokens[number] += np.count_nonzero(mask)
    assert tokens == {number: len(tokenizer.encode("map " * (number + 1))) for number in tokens}
    return set(numbers)


@pytest.mark.parametrize("other", ["mds", "parquet"])
def test_rows_have_the_columns_of_their_document_in_both_formats(source, tokenizer_folder, tmp_path, other):
    first = {"mds": "parquet", "parquet": "mds"}[other]
    options = ["--packing", "pad", "--max_length", "8", "--shard_size", "300"]
    out = run(source, tokenizer_folder, tmp_path / "out", *options, "--output_format", first)
    converted = tmp_path / "converted"
    convert.main([str(out), "--output_format", other, "--output", str(converted)])
    assert defects(converted) == []
    expected = run(source, tokenizer_folder, tmp_path / "expected", *options, "--output_format", other)
    assert shards(converted) == shards(expected)
    for folder in (out, converted):
        if manifest(folder)["output_format"] == "parquet":
            table = pq.read_table([folder / "train" / name for name in shards(folder)])
            assert check_values(table.to_pydict(), tokenizer_folder) == set(range(200))
    with pytest.raises(UsageError, match="has the columns lang, score, url of records"):
        convert.main([str(out), "--output_format", "tfrecord", "--output", str(tmp_path / "rows")])


def manifest(out: Path) -> dict:
    return json.loads((out / "train" / "manifest.json").read_bytes())


def test_whole_documents_have_the_columns_of_their_record(source, tokenizer_folder, tmp_path, capsys):
    out = run(source, tokenizer_folder, tmp_path / "out", "--packing", "none", "--output_format", "parquet")
    assert manifest(out)["record_columns"] == list(COLUMNS)
    table = pq.read_table([out / "train" / name for name in shards(out)]).to_pydict()
    assert table["url"] == [f"u{number}" for number in range(200)]
    check_values(table, tokenizer_folder)
    [split] = open_dataset(str(out))
    assert [row.ids.tolist() for row in split.rows(0)] == table["input_ids"]
    inspection.main([str(out), "--record", "train:0:7"])
    assert "a.jsonl, line 8 " in capsys.readouterr().out


def test_a_table_without_the_column_has_null(tokenizer_folder, tmp_path):
    texts = [f"The number {number}." for number in range(4)]
    pq.write_table(
        pa.table({"text": texts, "lang": [1, None, 3, 4], "url": ["a"] * 4, "score": [b"\xff"] * 4}),
        tmp_path / "1.parquet",
    )
    pq.write_table(pa.table({"text": texts}), tmp_path / "2.parquet")
    options = ["--packing", "none", "--output_format", "parquet"]
    out = run(tmp_path / "*.parquet", tokenizer_folder, tmp_path / "out", *options)
    table = pq.read_table([out / "train" / name for name in shards(out)]).to_pydict()
    assert table["lang"] == ["1", None, "3", "4", *[None] * 4]
    assert table["score"] == [*["\\xff"] * 4, *[None] * 4]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--packing", "concat", "--output_format", "parquet"], "a row may have several documents"),
        (["--packing", "best_fit", "--output_format", "mds"], "a row may have several documents"),
        (["--packing", "pad"], "tfrecord has no place for columns"),
        (["--packing", "none", "--output_format", "megatron"], "megatron has no place for columns"),
        (
            ["--packing", "pad", "--output_format", "mds", "--ids_column", "lang"],
            "lang is a feature of the rows",
        ),
    ],
)
def test_other_records_cannot_have_columns(source, tokenizer_folder, tmp_path, options, message):
    with pytest.raises(UsageError, match=message):
        run(source, tokenizer_folder, tmp_path / "out", *options)


def test_removed_documents_are_listed_with_the_columns(source, tokenizer_folder, tmp_path, capsys):
    out = tmp_path / "out"
    argv = [
        "--input",
        str(source),
        "--tokenizer",
        str(tokenizer_folder),
        "--output",
        str(out),
        "--dedup",
        "near",
    ]
    prepare.main([*argv, "--near_threshold", "0.5", "--keep_columns", "lang,url", "--unit_bytes", "9000"])
    files = sorted((out / "removed").iterdir())
    assert all(is_removed_file(str(path)) for path in files)
    table = pq.read_table(files)
    lines = source.read_text().splitlines(keepends=True)
    number_at = dict(zip(np.cumsum([0, *map(len, lines)]).tolist(), range(len(lines)), strict=False))
    for row in table.to_pylist():
        number = number_at[row["place"]]
        assert row["columns"] == {"lang": TEXTS[number % 8], "url": f"u{number}"}
    assert table.num_rows > 100 and table.flatten().group_by("columns.lang").aggregate([]).num_rows == 8
    capsys.readouterr()
    inspection.main([str(out), "--removed", "near", "--most", "1", "--json"])
    assert json.loads(capsys.readouterr().out)["samples"][0]["columns"].keys() == {"lang", "url"}
    prepare.main([*argv, "--near_threshold", "0.5", "--overwrite"])  # the files are its own
    assert not any("columns" in pq.read_schema(path).names for path in (out / "removed").iterdir())


def test_blocks_keep_the_columns_through_files_and_slots():
    columns = column_table({"url": ["a", None, "c"]}, ["url"])
    rows = RowBlock(np.arange(24, dtype=np.uint16).reshape(3, 8), np.full(3, 8, np.uint32), columns=columns)
    parts = [
        rows.take(np.array([2, 0]), np.array([0, 2], np.uint32)),
        rows.take(np.array([1]), np.array([1], np.uint32)),
    ]
    assembled = assemble([RowBlock.from_bytes(b"".join(part.parts())) for part in parts], 3, "shard 0")
    assert assembled.columns["url"].to_pylist() == ["c", None, "a"]
    documents = DocumentBlock(np.arange(4, dtype=np.uint16), np.array([1, 2, 1], np.uint32), columns)
    parts = [DocumentBlock.from_bytes(b"".join(documents.cut(*span).parts())) for span in ((0, 1), (1, 3))]
    assert DocumentBlock.concatenate(parts).columns.equals(columns)
