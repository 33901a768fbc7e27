"""Files that are not lines of text are recognized by their content and refused."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import sqlite3
import tarfile
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_pipeline.options.input_options import InputConfig
from beam_pipeline.sources import content
from beam_pipeline.sources.plan import plan
from beam_pipeline.sources.reading import read_unit
from beam_pipeline.sources.units import Part, WorkUnit
from beam_pipeline.support.errors import DataError, UsageError

LINES = b"a line of text\nand another\n" * 50


def tar(content: bytes = LINES) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        member = tarfile.TarInfo("inner.txt")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


def zip_archive() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("word/document.xml", LINES)
    return out.getvalue()


def parquet() -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table({"text": ["a"]}), out)
    return out.getvalue()


def database(folder: Path) -> bytes:
    connection = sqlite3.connect(folder / "x")
    connection.execute("create table t (x)")
    connection.close()
    return (folder / "x").read_bytes()


CASES = [
    ("a.tar", tar(), r"is a tar archive, .*; extract its files first"),
    ("a.tar.gz", gzip.compress(tar()), r"contains a tar archive"),
    ("A.TGZ", gzip.compress(tar()), r"is gzip data, .*rename it"),
    ("a.txt", gzip.compress(LINES), r"is gzip data, .*its name ends with \.gz"),
    ("a.txt.gz.gz", gzip.compress(gzip.compress(LINES)), r"contains gzip data"),
    ("a.txt.GZ", bz2.compress(LINES), r"its extension means gzip, but the file is bzip2 data"),
    ("a.txt.gz", LINES, r"its extension means gzip, but the file is not gzip data"),
    ("a.jsonl.bz2", zip_archive(), r"its extension means bz2, but the file is a zip archive"),
    ("a.txt", lzma.compress(LINES), r"is xz data, .*ends with \.xz: rename it"),
    ("a.docx", zip_archive(), r"is a zip archive \(.*\.docx"),
    ("a.jsonl", zip_archive(), r"is a zip archive .* not lines of jsonl"),
    ("a.txt", parquet(), r"is a parquet file, .*--input_format parquet"),
    ("a.txt", b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n", r"is a PDF document"),
    ("a.bin", bytes(range(1, 100)) + b"\0" + bytes(range(255)), r"is binary data \(byte \d+ is NUL\)"),
    ("a.txt", "zwölf".encode("utf-16"), r"is UTF-16 text, .*iconv -f UTF-16 -t UTF-8"),
    ("a.txt", "zwölf".encode("utf-32"), r"is UTF-32 text"),
    ("a.txt", "zwölf".encode("utf-16-le"), r"is binary data"),
    ("a.json", json.dumps([{"text": "a"}, {"text": "b"}]).encode(), r"is one JSON array, .*jq -c '\.\[\]'"),
    ("a.json", json.dumps([{"text": "x" * 9999}] * 3).encode(), r"is one JSON array"),
    ("a.json", json.dumps([{"text": "a"}], indent=1).encode(), r"is one JSON array"),
    ("a.json", json.dumps({"text": "a"}, indent=1).encode(), r"is one JSON object over several lines"),
    ("a.CSV", b"id,text\n1,a\n", r"\.csv files are tables; .*--input_format text"),
    ("a.tsv.gz", gzip.compress(b"id\ttext\n"), r"\.tsv files are tables"),
]


@pytest.mark.parametrize(("name", "data", "reason"), CASES, ids=[case[0] for case in CASES])
def test_a_file_of_another_kind_is_refused_at_planning(
    write, read, name: str, data: bytes, reason: str
) -> None:
    path = write(name, data)
    with pytest.raises(UsageError, match=reason) as error:
        plan(InputConfig(input=(path,)))
    assert path in str(error.value)
    assert "\n" not in str(error.value)


def test_a_database_is_refused(write, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is an SQLite database"):
        plan(InputConfig(input=(write("a.txt", database(tmp_path)),)))


def test_every_file_is_checked_when_it_is_read(write) -> None:
    path = write("a.txt", zip_archive())
    unit = WorkUnit(0, "text", path.removesuffix("a.txt"), (Part("a.txt", 0, len(zip_archive())),), 1)
    with pytest.raises(UsageError, match="is a zip archive"):
        list(read_unit(unit, InputConfig()))


def test_of_many_files_a_sample_is_opened_at_planning_with_each_extension(write, monkeypatch) -> None:
    for number in range(600):
        path = write(f"{number:03d}.txt", "text\n")
    write("555.docx", zip_archive())
    opened_paths = []
    open_text = content.open_text
    monkeypatch.setattr(
        "beam_pipeline.sources.plan.open_text",
        lambda *args: (opened_paths.append(args[1]), open_text(*args))[1],
    )
    with pytest.raises(UsageError, match=r"555\.docx: is a zip"):
        plan(InputConfig(input=(str(Path(path).parent / "*"),)))
    assert len(opened_paths) <= 256


def test_a_text_may_hold_nul_bytes(write, read) -> None:
    path = write("a.txt", "first zwölf\nse\0cond\n".encode())
    assert read(path).texts == ["first zwölf", "se\0cond"]
    path = write("a.txt", ("\0" + "x" * (content.HEAD - 2) + "ö\n").encode())  # a character at the edge
    assert len(read(path).texts) == 1
    path = write("b.bin", b"\0\0\0some\n")
    with pytest.raises(UsageError, match="is binary data"):
        read(path)
    assert read(path, input_format="text").texts == ["\0\0\0some"]


def test_what_only_looks_odd_is_read(write, read) -> None:
    write("empty.txt", b"")
    write("a.csv.txt", b"id,text\n")
    write("b.json", b'["a", "list"]\n{"text": "b"}\n')
    write("c.jsonl", b'\n {"text": "c\\u0000"}\n')
    path = write("d.txt", b"PK, Rar! and ustar\n")
    result = read(str(Path(path).parent / "*"))
    assert result.texts == ["id,text", "b", "c\0", "PK, Rar! and ustar"]
    assert ["JSON list" in bad_record.reason for bad_record in result.bad] == [True]
    assert read(write("e.csv", b"1,a\n"), input_format="text").texts == ["1,a"]


def test_a_broken_compressed_file_is_an_error_at_planning(write) -> None:
    with pytest.raises(DataError, match=r"a\.txt\.gz: truncated or corrupt"):
        plan(InputConfig(input=(write("a.txt.gz", gzip.compress(LINES)[:20]),)))


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.txt")
    with pytest.raises(UsageError, match=r"a\.txt: is not a regular file .* write its content to a file"):
        plan(InputConfig(input=(str(tmp_path / "a.txt"),)))
