"""ArrayRecord shards: their records, and that their bytes depend on nothing but the rows."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter

from beam_pipeline.dataset.records import RecordError, read_frames
from beam_pipeline.formats import arrayrecord
from beam_pipeline.formats.arrayrecord import ArrayRecord
from beam_pipeline.formats.base import RowForm
from beam_pipeline.formats.tfrecord import TFRecord
from tests.beam_pipeline.formats.test_formats import ALL, decoded, some_rows

FORM = RowForm(max_length=64, vocab_size=70_000, features=ALL)

_DIGEST = """
import hashlib
from tests.beam_pipeline.formats.test_arrayrecord import encoded
print(hashlib.sha256(encoded()).hexdigest())
"""


def encoded(rows: int = 2000) -> bytes:
    return b"".join(ArrayRecord(FORM).encode(some_rows(rows, 64, 70_000)))


def test_the_records_are_those_of_tfrecord_each_compressed_by_itself(tmp_path: Path):
    (tmp_path / "shard").write_bytes(encoded())
    reader = ArrayRecordReader(str(tmp_path / "shard"))
    assert reader.writer_options_string().startswith("group_size:1,transpose:false,")
    frames = b"".join(TFRecord(FORM).encode(some_rows(2000, 64, 70_000)))
    assert reader.read_all() == [*read_frames(io.BytesIO(frames), "")]


def test_other_processes_write_the_same_bytes_with_other_numbers_of_cores():
    expected = hashlib.sha256(encoded()).hexdigest()
    cores = sorted(os.sched_getaffinity(0))
    for allowed_cores in ({cores[0]}, set(cores)):
        actual = subprocess.run(
            [sys.executable, "-c", _DIGEST],
            cwd=Path(__file__).parents[3],
            preexec_fn=lambda allowed_cores=allowed_cores: os.sched_setaffinity(0, allowed_cores),
            capture_output=True,
            text=True,
            check=True,
        )
        assert actual.stdout.strip() == expected


def test_a_full_disk_is_an_error_of_the_file_system(monkeypatch):
    monkeypatch.setattr(arrayrecord.Path, "__truediv__", lambda *_: Path("/dev/full"))
    with pytest.raises(OSError, match="No space left on device"):
        encoded()


def test_no_file_is_left_in_the_temporary_folder(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    data = encoded(20)
    decoded(ArrayRecord(FORM), data)
    next(ArrayRecord(FORM).decode(io.BytesIO(data), "the-shard"))
    pieces = ArrayRecord(FORM).encode(some_rows(20, 64, 70_000))
    next(pieces)
    assert len([*tmp_path.iterdir()]) == 1
    pieces.close()
    assert [*tmp_path.iterdir()] == []


def test_a_record_larger_than_any_of_this_form_is_an_error(tmp_path: Path):
    writer = ArrayRecordWriter(str(tmp_path / "shard"), "group_size:1")
    writer.write(bytes(10_000))
    writer.close()
    with pytest.raises(RecordError, match="the-shard: record 0 has 10000 bytes; the maximum is"):
        decoded(ArrayRecord(FORM), (tmp_path / "shard").read_bytes())
