from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from beam_pipeline import __main__
from beam_pipeline.support.errors import DataError, UsageError
from beam_pipeline.views.reading import open_dataset, open_split


@pytest.fixture
def damaged_dataset(tmp_path: Path, dataset: Path) -> Path:
    return Path(shutil.copytree(dataset, tmp_path / "out"))


def test_the_splits_come_in_the_order_they_were_named_or_one_by_its_own_folder(dataset: Path):
    assert [split.name for split in open_dataset(str(dataset))] == ["train", "validation"]
    assert [split.name for split in open_dataset(str(dataset / "validation"))] == ["validation"]


def test_the_rows_are_all_the_manifest_counts(dataset: Path):
    for split in open_dataset(str(dataset)):
        totals, max_length = split.manifest["totals"], split.manifest["max_length"]
        rows = [row for shard in range(len(split.manifest["shards"])) for row in split.rows(shard)]
        assert len(rows) == totals["rows"] == split.manifest["num_records"]
        assert sum(len(row.ids) for row in rows) == totals["tokens"]
        assert sum(row.padding for row in rows) == totals["padding"]
        assert all(len(row.ids) + row.padding == max_length for row in rows)
        counts = np.bincount(np.concatenate([row.ids for row in rows]))
        recorded_counts = np.array(split.statistics()["token_counts"])
        assert (recorded_counts[: len(counts)] == counts).all() and recorded_counts.sum() == counts.sum()


def test_starts_are_where_segments_begin(dataset: Path):
    split = open_dataset(str(dataset))[0]
    for record, row in enumerate(split.rows(0)):
        assert row.starts[0] == 0
        if split.origin(0, record).is_of_tails:  # tails may begin within a document
            continue
        # The template's <s> begins each document; only a row's first one may go on from another row.
        segment_starts = np.flatnonzero(row.ids == 0)
        assert set(segment_starts) | {0} == set(row.starts)


def test_a_record_is_the_one_that_stands_there(dataset: Path):
    split = open_dataset(str(dataset))[0]
    for shard in (0, len(split.manifest["shards"]) - 1):
        rows = list(split.rows(shard))
        for record in (0, len(rows) // 2, len(rows) - 1):
            assert (split.row(shard, record).ids == rows[record].ids).all()


def test_every_row_has_an_origin_of_its_own(dataset: Path):
    split = open_dataset(str(dataset))[0]
    origins = [
        split.origin(shard, record)
        for shard, info in enumerate(split.manifest["shards"])
        for record in range(info["records"])
    ]
    assert sorted(origin.rank for origin in origins) == list(range(split.manifest["num_records"]))
    lines = [json.loads(line) for line in (dataset / "train" / "units.jsonl").read_text().splitlines()]
    for number, line in enumerate(lines):
        positions = sorted(
            origin.position
            for origin in origins
            if (len(lines) - 1 if origin.is_of_tails else origin.units[0].index) == number
        )
        assert positions == list(range(line["rows"]))
    tails = sorted((origin for origin in origins if origin.is_of_tails), key=lambda origin: origin.position)
    sizes, max_length = [line.get("tail") for line in lines], split.manifest["max_length"]
    for origin in tails:
        before = sum(sizes[: origin.units[0].index]) + origin.skipped_tokens
        assert before == origin.position * max_length
        assert 0 <= origin.skipped_tokens < sizes[origin.units[0].index]
        last_unit = origin.units[-1].index
        assert sum(sizes[:last_unit]) < before + max_length
        assert origin is tails[-1] or sum(sizes[: last_unit + 1]) >= before + max_length
    assert len(split.units) == len(lines) - 1 > 3


@pytest.mark.parametrize(("shard", "record"), [(99, 0), (0, 300), (0, 10**6)])
def test_what_is_not_there_is_a_usage_error_that_says_what_is(dataset: Path, shard: int, record: int):
    with pytest.raises(UsageError, match=r"has shards 0 to|has records 0 to 299"):
        open_dataset(str(dataset))[0].row(shard, record)


def test_no_dataset(tmp_path: Path):
    with pytest.raises(DataError, match="no such folder, or it is empty"):
        open_dataset(str(tmp_path))
    with pytest.raises(DataError, match="not a finished dataset"):
        open_split(str(tmp_path / "absent"))
    (tmp_path / "notes.txt").touch()
    with pytest.raises(DataError, match="not a finished dataset: no split"):
        open_dataset(str(tmp_path))


def test_a_split_that_is_missing_is_noticed(damaged_dataset: Path):
    shutil.rmtree(damaged_dataset / "validation")
    with pytest.raises(DataError, match=r"validation: no manifest\.json"):
        open_dataset(str(damaged_dataset))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("units.jsonl", b'{"rows": 3}\n', "rows add up to 3"),
        ("units.jsonl", b"no json\n", "units.jsonl: cannot be read"),
        ("units.jsonl", None, "units.jsonl: missing"),
        ("statistics.json", b"{", "statistics.json: broken JSON"),
        ("../tokenizer/tokenizer.json", None, "tokenizer.json: missing"),
    ],
)
def test_files_that_are_broken_or_missing_are_named(
    damaged_dataset: Path, name: str, content: bytes, message: str
):
    path = damaged_dataset / "train" / name
    path.unlink() if content is None else path.write_bytes(content)
    split = open_split(str(damaged_dataset / "train"))
    with pytest.raises(DataError, match=message):
        split.statistics(), split.tokenizer_json(), split.origin(0, 0)


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b'{"model": {"type": "Unknown", "vocab": {}}}'])
def test_a_tokenizer_that_cannot_be_loaded_is_named(damaged_dataset: Path, content: bytes, capsys):
    path = damaged_dataset / "tokenizer" / "tokenizer.json"
    path.write_bytes(content)
    for verb, *options in (["report"], ["inspect", "--record", "train:0:0"], ["inspect", "--grep", "a"]):
        assert __main__.run(verb, [str(damaged_dataset), *options]) == 1
        assert f"{verb}: {path}: cannot be loaded: " in capsys.readouterr().err


def test_a_shard_that_is_broken_or_missing_is_named(damaged_dataset: Path):
    split = open_split(str(damaged_dataset / "train"))
    path = Path(split.shard_path(0))
    data = path.read_bytes()
    path.write_bytes(data[:-5])
    with pytest.raises(
        DataError, match=f"{path.name}: record 299 at byte .*: the file ends within the record"
    ):
        list(split.rows(0))
    path.unlink()
    with pytest.raises(DataError, match=f"{path.name}: cannot be read"):
        list(split.rows(0))
