from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_pipeline.options.input_options import InputConfig
from beam_pipeline.sources import parquet
from beam_pipeline.sources.plan import plan
from beam_pipeline.sources.reading import describe, read_unit
from beam_pipeline.support import filesystem
from beam_pipeline.support.errors import DataError, UsageError

TYPES = [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]


def write_table(path: Path, texts: pa.Array | list[str | None], row_group_size: int = 3) -> str:
    table = pa.table({"id": range(len(texts)), "text": texts})
    pq.write_table(table, path, row_group_size=row_group_size)
    return str(path)


def test_a_character_that_is_divided_between_two_rows_is_invalid_in_both(tmp_path: Path, read) -> None:
    column = pa.array([b"a\xc3", b"", b"\xa9b", b"fine"], pa.binary()).view(pa.string())
    result = read(write_table(tmp_path / "a.parquet", column, row_group_size=10))
    assert [entry[1:] for entry in result.documents] == [(3, "fine")]
    assert [(record.place, record.content) for record in result.bad] == [(0, b"a\xc3"), (2, b"\xa9b")]


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_documents_of_every_type(tmp_path: Path, read, kind: pa.DataType) -> None:
    texts = ["zwölf\n日本 \0", "", "two", "two", " ", "last"]
    column = pa.array(texts).dictionary_encode() if pa.types.is_dictionary(kind) else pa.array(texts, kind)
    path = write_table(tmp_path / "a.parquet", column)
    assert pq.read_schema(path).field("text").type == kind
    for unit_bytes in (1, 1 << 20):
        result = read(path, unit_bytes=unit_bytes)
        assert [entry[1:] for entry in result.documents] == [
            (0, texts[0]),
            (2, "two"),
            (3, "two"),
            (5, "last"),
        ]
        assert result.blank == 2
        assert len(result.units) == (2 if unit_bytes == 1 else 1)


def test_units_are_runs_of_row_groups(tmp_path: Path, read) -> None:
    texts = [f"{number:0100d}" for number in range(100)]
    path = write_table(tmp_path / "a.parquet", texts, row_group_size=10)
    (size,) = {group.bytes for group in parquet.row_groups(path, Path(path).stat().st_size, InputConfig())}
    assert 1000 < size < 1500
    result = read(path, unit_bytes=3 * size)
    assert result.texts == texts
    assert [place for _, place, _ in result.documents] == list(range(100))
    ranges = [(part.start, part.end) for unit in result.units for part in unit.parts]
    assert ranges == [(0, 3), (3, 6), (6, 9), (9, 10)]
    assert all(len(unit.parts) == 1 and unit.bytes <= 3 * size for unit in result.units)


def test_small_files_share_a_unit_and_empty_ones_have_none(tmp_path: Path, read) -> None:
    for number in range(4):
        write_table(tmp_path / f"{number}.parquet", [f"document {number}"] if number != 2 else [])
    result = read(str(tmp_path / "*.parquet"))
    assert result.texts == ["document 0", "document 1", "document 3"]
    assert len(result.units) == 1
    assert len(result.plan.files) == 4


def test_null_is_a_bad_record_named_by_its_row(tmp_path: Path, read) -> None:
    path = write_table(tmp_path / "a.parquet", ["a", "b", "c", "d", None, "f"])
    result = read(path)
    assert result.texts == ["a", "b", "c", "d", "f"]
    assert [describe(result.units[0], bad_record) for bad_record in result.bad] == [
        f"{path}, row 4 (counted from 0): null instead of a text"
    ]


def test_invalid_utf8_is_a_bad_record(tmp_path: Path, read) -> None:
    column = pa.array([b"fine", b"br\xffken", None, b"fine, too"], pa.binary()).view(pa.string())
    path = write_table(tmp_path / "a.parquet", column, row_group_size=10)
    result = read(path)
    assert [entry[1:] for entry in result.documents] == [(0, "fine"), (3, "fine, too")]
    assert [(bad_record.place, bad_record.content) for bad_record in result.bad] == [
        (1, b"br\xffken"),
        (2, b""),
    ]
    assert "invalid UTF-8: byte 0xff at column 3" in result.bad[0].reason


@pytest.mark.parametrize("key", ["body", "a.b"])
def test_text_key_names_the_column(tmp_path: Path, read, key: str) -> None:
    pq.write_table(pa.table({"a": [{"b": "no"}], key: ["one"], "n": [1]}), tmp_path / "a.parquet")
    assert read(str(tmp_path / "a.parquet"), text_key=key).texts == ["one"]


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("body", "has no column 'body' (set by --text_key); its columns are id, text"),
        ("id", "its column 'id' (set by --text_key) has type int64, not string; its string columns are text"),
    ],
)
def test_a_wrong_column_is_an_error_while_planning(tmp_path: Path, read, key: str, reason: str) -> None:
    path = write_table(tmp_path / "a.parquet", ["a"])
    with pytest.raises(UsageError) as error:
        read(path, text_key=key)
    assert str(error.value) == f"{path}: {reason}"


@pytest.mark.parametrize("content", [b"", b"PAR1", b"this is text, not a table"])
def test_what_is_no_parquet_file_is_an_error_while_planning(write, read, content: bytes) -> None:
    with pytest.raises(UsageError, match=r"a\.parquet: cannot be read as parquet: "):
        read(write("a.parquet", content))


def test_a_broken_page_is_an_error(tmp_path: Path, read) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a" * 1000]}), path, compression=None, write_page_checksum=True)
    path.write_bytes(path.read_bytes().replace(b"aaaaa", b"aabaa", 1))
    with pytest.raises(DataError, match=r"a\.parquet: cannot be read: .*CRC"):
        read(str(path))


def test_planning_reads_footers_only(tmp_path: Path, monkeypatch) -> None:
    texts = [f"{number:01000d}" for number in range(5000)]
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet", compression=None, use_dictionary=False)
    read_bytes = []

    class Counting(io.BufferedReader):
        def read(self, size: int | None = -1) -> bytes:
            piece = super().read(size)
            read_bytes.append(len(piece))
            return piece

    monkeypatch.setattr(filesystem, "open_file", lambda path: Counting(io.FileIO(path)))
    planned = plan(InputConfig(input=(str(tmp_path / "a.parquet"),)))
    assert planned.bytes > 5_000_000
    assert 0 < sum(read_bytes) < 100_000


def test_a_dictionary_that_stands_for_much_text_is_decoded_piece_by_piece(tmp_path: Path) -> None:
    """A file of one kilobyte that contains 320 MB of text."""
    texts = ["a" * 16_000, "short", "b" * 10]
    numbers = np.repeat(np.arange(3), [20_000, 3, 10_000])
    nulls = numbers == 1
    column = pa.DictionaryArray.from_arrays(pa.array(numbers, pa.int32(), mask=nulls), pa.array(texts))
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": column}), path, store_schema=False)
    assert path.stat().st_size < 2000
    config = InputConfig(input=(str(path),))
    (unit,) = plan(config).units
    before = pa.total_allocated_bytes()
    row = 0
    for batch in read_unit(unit, config):
        assert batch.texts.sizes.sum() <= 4 << 20
        assert pa.total_allocated_bytes() - before < 32 << 20
        for place, text in zip(batch.places.tolist(), batch.texts, strict=True):
            assert text == texts[numbers[place]] != texts[1]
        row += len(batch.texts) + len(batch.bad_records)
    assert row == len(numbers)


@pytest.mark.parametrize("encoding", ["PLAIN", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"])
def test_texts_of_very_different_sizes_come_in_batches_of_few_bytes(
    tmp_path: Path, read, encoding: str
) -> None:
    texts = ["x"] * 20_000 + ["y" * 1_000_000] * 30 + ["z" * 9_000_000, "last"]
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": texts}), path, use_dictionary=False, column_encoding={"text": encoding})
    config = InputConfig(input=(str(path),))
    (unit,) = plan(config).units
    batches = list(read_unit(unit, config))
    assert [text for batch in batches for text in batch.texts] == texts
    assert np.concatenate([batch.places for batch in batches]).tolist() == list(range(len(texts)))
    assert all(batch.texts.sizes.sum() <= 4 << 20 or len(batch.texts) == 1 for batch in batches)


def test_a_column_of_nulls_alone_is_bad_records(tmp_path: Path, read) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": pa.nulls(3)}), path)
    assert [bad_record.place for bad_record in read(str(path)).bad] == [0, 1, 2]


def test_a_corrupt_page_is_an_error_of_one_line(tmp_path: Path, read) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["abc"]}), path)
    data = bytearray(path.read_bytes())
    data[5] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"a\.parquet: cannot be read: ") as error:
        read(str(path))
    assert "\n" not in str(error.value)
