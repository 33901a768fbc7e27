"""Records of all shapes that `tf.train.Example` allows."""

from __future__ import annotations

import random
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tokenmill_reader.written import example, field, int64_feature, random_rows, varint, write_shards
from tokenmill_reader import Dataset, DatasetError
from tokenmill_reader.examples import parse_example
from tokenmill_reader.varints import decode_varints

pytestmark = pytest.mark.usefixtures("decoder")

VALUES = st.one_of(
    st.integers(0, 200),
    st.integers(0, 70_000),
    st.integers(2**14 - 2, 2**14 + 2),
    st.integers(-(2**31), 2**31 - 1),
)


@given(values=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=40))
def test_varints_of_any_size(values: list[int]) -> None:
    data = np.frombuffer(b"".join(map(varint, values)), np.uint8)
    assert decode_varints(data).tolist() == values


@pytest.mark.parametrize("data", [b"\x80", b"\x01\xff", b"\xff" * 10 + b"\x01", b"\xff" * 9 + b"\x02"])
def test_broken_varints(data: bytes) -> None:
    with pytest.raises(ValueError, match="varint"):
        decode_varints(np.frombuffer(data, np.uint8))


@given(
    rows=st.integers(1, 9).flatmap(
        lambda length: st.lists(st.lists(VALUES, min_size=length, max_size=length), min_size=1, max_size=12)
    ),
    seed=st.integers(0, 10**6),
)
def test_any_mix_of_encodings_gives_the_values(
    rows: list[list[int]], seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    choose = random.Random(seed)
    mask = [[choose.randint(0, 1) for _ in row] for row in rows]
    records = []
    for ids, mask_row in zip(rows, mask, strict=True):
        entries = [
            int64_feature("input_ids", ids, packed=choose.random() < 0.7),
            int64_feature("attention_mask", mask_row, packed=choose.random() < 0.7),
        ]
        if choose.random() < 0.3:  # a feature of bytes, and fields that no version has yet
            entries.append(field(1, field(1, b"text") + field(2, field(1, field(1, b"abc")))))
            entries.append(field(7, b"unknown"))
        choose.shuffle(entries)
        records.append(field(1, b"".join(entries)))
    folder = tmp_path_factory.mktemp("mixed") / "train"
    write_shards(folder, [records])
    columns = Dataset.open(folder, check=1)[:]
    np.testing.assert_array_equal(columns["input_ids"], rows)
    np.testing.assert_array_equal(columns["attention_mask"], mask)
    assert columns["input_ids"].dtype == np.int32


def test_lengths_around_the_sizes_of_varints(tmp_path: Path) -> None:
    # The heads of the records have lengths of one, two and three bytes, so they have several layouts.
    for length in (1, 42, 63, 64, 65, 127, 128, 129, 5461, 8192, 16384):
        rows = random_rows(20, length, largest=2**21 - 1)
        rows[3], rows[4] = 1, 2**21 - 1
        folder = tmp_path / str(length) / "train"
        write_shards(folder, [[example({"input_ids": row.tolist()}) for row in rows]])
        np.testing.assert_array_equal(Dataset.open(folder)[:]["input_ids"], rows)


def test_ids_of_four_and_five_bytes(tmp_path: Path) -> None:
    rows = random_rows(40, 12, largest=2**31 - 1)
    rows[0], rows[1], rows[2] = 2**21 - 1, 2**28, 2**31 - 1
    write_shards(tmp_path / "train", [[example({"input_ids": row.tolist()}) for row in rows]])
    np.testing.assert_array_equal(Dataset.open(tmp_path / "train", check=1)[:]["input_ids"], rows)


def test_redundant_varints(tmp_path: Path) -> None:
    # Protobuf accepts a varint with leading zeros.
    padded_record = field(
        1, field(1, field(1, b"input_ids") + field(2, field(3, field(1, b"\x85\x00\x83\x80\x00\x07"))))
    )
    write_shards(tmp_path / "train", [[example({"input_ids": [1, 2, 3]}), padded_record]])
    assert Dataset.open(tmp_path / "train")[:]["input_ids"].tolist() == [[1, 2, 3], [5, 3, 7]]


def test_the_last_of_several_entries_counts() -> None:
    entries = int64_feature("a", [1]) + int64_feature("a", [2]) + field(1, field(1, b"b") + field(2, b""))
    features = parse_example(field(1, entries))
    assert features["a"].tolist() == [2]
    assert features["b"].tolist() == []


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (example({"other": [1, 2, 3]}), "has no input_ids, only 'other'"),
        (example({"input_ids": [1, 2]}), "has 2 values in input_ids, not 3"),
        (example({"input_ids": [1, 2, 3, 4]}, packed=False), "has 4 values in input_ids, not 3"),
        (example({"input_ids": [1, 2, 2**31]}), "has values in input_ids that do not fit into 32 bits"),
        (
            field(1, field(1, field(1, b"input_ids") + field(2, field(2, b"")))),
            "has values in input_ids that are not int64",
        ),
        (b"", "has no input_ids, only nothing"),
        (b"\x0a\x7f", "is not a tf.train.Example: a field of 127 bytes, where only 0 are left"),
        (b"\x0a" + b"\xff" * 10, "is not a tf.train.Example: a varint has more than 64 bits"),
        (b"\x0b", "is not a tf.train.Example: a field has the wire type 3"),
        (b"\x80", "is not a tf.train.Example: it ends within a varint"),
    ],
)
def test_an_unsuitable_record_is_named(tmp_path: Path, record: bytes, reason: str) -> None:
    good_record = example({"input_ids": [1, 2, 3]})
    (path,) = write_shards(tmp_path / "train", [[good_record, good_record, record]])
    dataset = Dataset.open(tmp_path / "train")
    assert dataset[1]["input_ids"].tolist() == [1, 2, 3]
    with pytest.raises(DatasetError, match=re.escape(f"{path}: record 2: {reason}")):
        dataset[:]
