"""Properties of all sources: remote file systems, and the description of a record's place."""

from __future__ import annotations

import bz2
import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_pipeline.options.input_options import InputConfig
from beam_pipeline.sources import reading as sources
from beam_pipeline.sources.plan import plan
from beam_pipeline.sources.reading import describe, describe_place, read_unit
from beam_pipeline.sources.units import BadRecord, Part, WorkUnit

TEXTS = [f"document {number}, zwölf" for number in range(300)]


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.txt.gz", "a.jsonl.bz2", "a.parquet"])
def test_a_remote_file_system(bucket: Path, read, name: str) -> None:
    path = bucket / "folder" / name
    path.parent.mkdir()
    lines = "\n".join(json.dumps({"text": text}) if "jsonl" in name else text for text in TEXTS).encode()
    if name.endswith(".parquet"):
        pq.write_table(pa.table({"text": TEXTS}), path, row_group_size=50)
    else:
        path.write_bytes({".gz": gzip.compress, ".bz2": bz2.compress}.get(path.suffix, bytes)(lines))
    result = read("box://folder/*", unit_bytes=1000)
    assert result.texts == TEXTS
    assert result.plan.root == "box://folder/"
    assert plan(InputConfig(input=("box://folder/*",), unit_bytes=1000), local_files=False) == result.plan


def unit_of(path: str, form: str) -> WorkUnit:
    folder, _, name = path.rpartition("/")
    return WorkUnit(0, form, folder + "/", (Part(name, 0, 1),), 1)


def test_places(write) -> None:
    content = b"one\ntwo\nthree\n"
    path = write("a.txt", content)
    assert describe_place(unit_of(path, "text"), "a.txt", 8) == f"{path}, line 3 (byte 8)"
    path = write("a.jsonl.gz", gzip.compress(content))
    description = describe_place(unit_of(path, "jsonl"), "a.jsonl.gz", 4)
    assert description == f"{path}, line 2 (byte 4 of its content)"
    assert describe_place(unit_of("/x/a.parquet", "parquet"), "a.parquet", 17) == (
        "/x/a.parquet, row 17 (counted from 0)"
    )
    assert (
        describe_place(unit_of("/x/a.arrow", "arrow"), "a.arrow", 0) == "/x/a.arrow, row 0 (counted from 0)"
    )


def test_a_place_is_named_even_where_the_file_is_gone(write) -> None:
    bad_record = BadRecord("gone.txt", 8, "broken")
    assert describe(unit_of("/nowhere/gone.txt", "text"), bad_record) == "/nowhere/gone.txt, byte 8: broken"
    path = write("a.txt.gz", gzip.compress(b"x" * 100_000)[:50])
    description = describe(unit_of(path, "text"), BadRecord("a.txt.gz", 99_000, "broken"))
    assert description == f"{path}, byte 99000 of its content: broken"


def test_no_line_is_counted_far_into_a_file(monkeypatch) -> None:
    monkeypatch.setattr(sources.filesystem, "open_file", lambda path: pytest.fail("it was opened"))
    place = (1 << 30) + 1
    assert describe_place(unit_of("/x/a.txt", "text"), "a.txt", place) == f"/x/a.txt, byte {place}"


@pytest.mark.parametrize(
    ("name", "document"),
    [
        ("a.jsonl", "line"),
        ("a.parquet", "line"),
        *(("a.txt", kind) for kind in ("line", "paragraph", "file")),
    ],
)
def test_another_text_has_another_checksum(write, name, document) -> None:
    sums = []
    for text in ("aé\x00 b", "aé\x00 c", "aé\x00 b"):
        path = write(name, json.dumps({"text": text}) + "\n")
        if name.endswith(".parquet"):
            pq.write_table(pa.table({"text": ["first", None, text, "last"]}).slice(1), path)
        config = InputConfig(input=(path,), document=document)
        sums.append([batch.crc for unit in plan(config).units for batch in read_unit(unit, config)])
    assert sums[0] == sums[2] != sums[1]
