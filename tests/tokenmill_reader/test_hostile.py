"""Damaged and hostile shards: a clear error or the right rows, but never another exception, and never much memory."""

from __future__ import annotations

import random
import re
import resource
import struct
import time
from pathlib import Path

import numpy as np
import pytest

from tests.tokenmill_reader.written import (
    example,
    field,
    frame,
    masked_crc,
    random_rows,
    varint,
    write_shards,
)
from tokenmill_reader import Dataset, DatasetError

pytestmark = pytest.mark.usefixtures("decoder")

IDS = random_rows(30, 40)
RECORDS = [example({"attention_mask": [1] * 40, "input_ids": row.tolist()}) for row in IDS]


def mutate(data: bytes, choose: random.Random) -> bytes:
    """Changes, removes, inserts or repeats some bytes."""
    out = bytearray(data)
    for _ in range(choose.randint(1, 4)):
        place, length = choose.randrange(len(out) + 1), choose.choice([1, 1, 2, 5, 40])
        kind = choose.randrange(5)
        if kind == 0 and place < len(out):
            out[place] = choose.choice([0, 0x7F, 0x80, 0xFF, choose.randrange(256)])
        elif kind == 1:
            del out[place : place + length]
        elif kind == 2:
            out[place:place] = bytes(choose.choice([[0xFF] * length, [0x80] * length, [0x0A] * length]))
        elif kind == 3:
            out[place:place] = out[place : place + length]
        elif out:
            out[choose.randrange(len(out))] ^= 1 << choose.randrange(8)
    return bytes(out)


@pytest.mark.parametrize("seed", range(6))
def test_damaged_files(tmp_path: Path, seed: int) -> None:
    choose = random.Random(seed)
    data = b"".join(map(frame, RECORDS))
    for number in range(40):
        (path,) = write_shards(tmp_path / str(number), [RECORDS])
        path.write_bytes(mutate(data, choose))
        try:
            columns = Dataset.open(path.parent, check=1)[:]
        except DatasetError as error:
            assert str(path) in str(error)
            assert "record" in str(error) or "bytes are too few" in str(error)
            assert "copy or prepare the dataset again" in str(error) or "has no input_ids" in str(error)
        else:
            np.testing.assert_array_equal(columns["input_ids"], IDS)


@pytest.mark.parametrize("seed", range(6))
def test_hostile_records_with_right_checksums(tmp_path: Path, seed: int) -> None:
    choose = random.Random(seed)
    for number in range(40):
        records = list(RECORDS)
        for place in choose.sample(range(1, 30), choose.choice([1, 3, 29])):
            records[place] = mutate(records[place], choose)
        (path,) = write_shards(tmp_path / str(number), [records])
        dataset = Dataset.open(path.parent, check=1)
        for row in range(30):
            try:
                columns = dataset[row]
            except DatasetError as error:
                assert re.search(rf"{re.escape(str(path))}: record {row}: .*; copy or prepare", str(error))
                assert records[row] != RECORDS[row]
            else:
                assert {name: values.shape for name, values in columns.items()} == {
                    "attention_mask": (40,),
                    "input_ids": (40,),
                }
                if records[row] == RECORDS[row]:
                    assert columns["input_ids"].tolist() == IDS[row].tolist()
        # Together, the rows are the same as one by one.
        rows = [row for row in range(30) if readable(dataset, row)]
        batch_ids = dataset[rows]["input_ids"].tolist()
        assert batch_ids == [dataset[row]["input_ids"].tolist() for row in rows]


def readable(dataset: Dataset, row: int) -> bool:
    try:
        dataset[row]
    except DatasetError:
        return False
    return True


def length_head(length: int) -> bytes:
    data = struct.pack("<Q", length)
    return data + masked_crc(data)


HUGE = 2**62
NESTED = field(1, field(1, field(1, b"input_ids") + field(2, field(3, field(1, b"")))))


@pytest.mark.parametrize(
    "content",
    [
        length_head(HUGE) + b"x" * 100,
        length_head(2**64 - 16) + b"x" * 100,
        length_head(2**64 - 1) + b"x" * 100,
        length_head(0) * 2,
        frame(varint(10) + varint(HUGE) + b"x" * 50),
        frame(field(1, varint(10) + varint(HUGE))),
        frame(field(1, field(1, field(1, b"input_ids") + field(2, field(3, varint(10) + varint(HUGE)))))),
        frame(NESTED),
        frame(field(1, b"".join(field(1, field(1, b"%d" % n) + field(2, b"")) for n in range(20_000)))),
        frame(b"\x0a\x00" * 200_000),
        frame(b"\x80" * 1_000_000),
        frame(
            field(1, field(1, field(1, b"input_ids") + field(2, field(3, b"\x08\x01" * 500_000 + b"\x08"))))
        ),
        b"\x00" * 1_000,
    ],
    ids=range(13),
)
@pytest.mark.parametrize("first", [False, True])
def test_lengths_that_lie_take_neither_time_nor_memory(tmp_path: Path, content: bytes, first: bool) -> None:
    good_frame = frame(RECORDS[0])
    (path,) = write_shards(tmp_path / "train", [[b"", b""]])
    path.write_bytes(content + good_frame if first else good_frame + content)
    before, start_time = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with pytest.raises(DatasetError, match=re.escape(str(path)) + ": (record|has|.* bytes are too few)"):
        Dataset.open(tmp_path / "train")[:]
    assert time.process_time() - start_time < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB


def test_a_large_record_among_small_ones_does_not_multiply_memory(tmp_path: Path) -> None:
    filler = field(1, field(1, b"text") + field(2, field(1, field(1, b"x" * 4_000_000))))
    large_record = field(1, RECORDS[5][3:] + filler)
    (path,) = write_shards(tmp_path / "train", [[*RECORDS[:5], large_record, *RECORDS[6:]] * 8])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    columns = Dataset.open(path.parent)[:]
    np.testing.assert_array_equal(columns["input_ids"], np.concatenate([IDS] * 8))
    assert (
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000
    )  # KiB; 240 rows of 4 MB are 960 MB
