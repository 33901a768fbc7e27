"""The offsets beside the shards: reading one record needs no others, and rows never depend on them."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.tokenmill_reader.written import describe, offsets_of, random_rows, write_manifest, write_split
from tokenmill_reader import Dataset, DatasetError, shards

IDS = random_rows(95, 300)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """95 rows in 4 shards with offsets."""
    return write_split(tmp_path / "train", {"input_ids": IDS}, shard_rows=30)


def shard(folder: Path, number: int) -> Path:
    return sorted(folder.glob("*.tfrecord"))[number]


@pytest.fixture
def no_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets no shard be scanned for its records."""

    def fail(*_: object) -> None:
        raise AssertionError("a shard was scanned")

    monkeypatch.setattr(shards, "index_frames", fail)


@pytest.mark.usefixtures("no_scan")
def test_rows_are_found_by_the_offsets(folder: Path) -> None:
    dataset = Dataset.open(folder)
    np.testing.assert_array_equal(dataset[[94, -95, 31, 31]]["input_ids"], IDS[[94, 0, 31, 31]])
    np.testing.assert_array_equal(dataset[:]["input_ids"], IDS)
    dataset.verify()


DAMAGE: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: path.unlink(),
    "no folder": lambda path: path.parent.rename(path.parent.with_name("moved")),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "empty": lambda path: path.write_bytes(b""),
    "cut off": lambda path: path.write_bytes(path.read_bytes()[:-8]),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"12345678"),
    "changed": lambda path: path.write_bytes(b"\1" + path.read_bytes()[1:]),
    "of another shard": lambda path: path.write_bytes(offsets_of(shard(path.parents[1], 0)).read_bytes()),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_without_good_offsets_the_shard_is_scanned(
    folder: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = offsets_of(shard(folder, 1))
    DAMAGE[damage](path)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    dataset = Dataset.open(folder)
    with caplog.at_level(logging.WARNING):
        np.testing.assert_array_equal(dataset[[31, 0]]["input_ids"], IDS[[31, 0]])
    warnings = [record.getMessage() for record in caplog.records]
    if damage in ("missing", "no folder", "a folder"):
        assert warnings == []
    else:
        assert warnings == [f"{path}: damaged, so the whole shard is read instead"]
    # The reader writes nothing.
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "change",
    [
        lambda offsets: offsets[::-1].copy(),
        lambda offsets: offsets + 1,
        lambda offsets: np.where(offsets == offsets[3], offsets + 2**60, offsets),
    ],
)
def test_offsets_that_lie_with_the_right_checksum(folder: Path, change: Callable[..., np.ndarray]) -> None:
    path = offsets_of(shard(folder, 1))
    change(np.fromfile(path, "<u8")).tofile(path)
    write_manifest(folder, describe(folder, sorted(folder.glob("*.tfrecord")), ["input_ids"], 300))
    np.testing.assert_array_equal(Dataset.open(folder)[[31, 40]]["input_ids"], IDS[[31, 40]])


def test_offsets_that_point_into_records(folder: Path) -> None:
    path = offsets_of(shard(folder, 1))
    offsets = np.fromfile(path, "<u8")
    offsets[3] += 1
    offsets.tofile(path)
    write_manifest(folder, describe(folder, sorted(folder.glob("*.tfrecord")), ["input_ids"], 300))
    dataset = Dataset.open(folder)
    np.testing.assert_array_equal(dataset[31]["input_ids"], IDS[31])
    with pytest.raises(DatasetError, match=r"train-00001-30\.tfrecord: record 3: its length differs"):
        dataset[33]


def test_numbers_of_rows_beyond_32_bits(tmp_path: Path) -> None:
    """Three shards of 2**30 records each, which are sparse files: the offsets of the last one are right, too."""
    folder = write_split(tmp_path / "train", {"input_ids": IDS[:90]}, shard_rows=30)
    count = 2**30
    paths = []
    for number in range(3):
        (last_shard,) = (shard for shard in folder.glob(f"train-0000{number}-30.tfrecord"))
        paths.append(last_shard.rename(folder / f"train-0000{number}-{count}.tfrecord"))
        os.truncate(paths[-1], 16 * count)
    manifest = describe(folder, [], ["input_ids"], 300)
    manifest["shards"] = [{"name": path.name, "records": count, "bytes": 16 * count} for path in paths]
    write_manifest(folder, {**manifest, "num_records": 3 * count})
    dataset = Dataset.open(folder)
    assert len(dataset) == 3 * count
    assert dataset.locate(2**31 + 5) == (paths[2].name, 5)
    with pytest.raises(IndexError, match="no row 3221225472"):
        dataset[3 * count]
    with pytest.raises(DatasetError, match=r"train-00002-.*: record 30 at byte"):
        dataset[2**31 + 5]


def test_datasets_without_offsets_are_read(tmp_path: Path) -> None:
    folder = write_split(tmp_path / "train", {"input_ids": IDS}, offsets=False)
    assert not (folder / "offsets").exists()
    np.testing.assert_array_equal(Dataset.open(folder)[:]["input_ids"], IDS)


def test_a_manifest_of_another_layout_is_read(folder: Path) -> None:
    path = folder / "manifest.json"
    text = json.dumps(json.loads(path.read_bytes()), indent=2)
    [line] = [line for line in text.splitlines() if line.startswith('  "checksum"')]
    checksum = hashlib.sha256(text.replace(f"{line}\n", "").encode()).hexdigest()
    path.write_text(text.replace(line, f'  "checksum": "{checksum}",'))
    np.testing.assert_array_equal(Dataset.open(folder)[:]["input_ids"], IDS)


@pytest.fixture
def remote_dataset(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Dataset, list[tuple[str, int]]]:
    """The dataset in a memory file system, and the name and size of each range that is read from its shards."""
    fsspec = pytest.importorskip("fsspec")
    files = fsspec.filesystem("memory")
    root = f"/{os.urandom(8).hex()}/train"
    files.put(str(folder), root, recursive=True)
    read: list[tuple[str, int]] = []
    cat_ranges = type(files).cat_ranges

    def count_ranges(self: object, paths: list[str], starts: list[int], ends: list[int]) -> list[bytes]:
        read.extend((path.rpartition("/")[2], b - a) for path, a, b in zip(paths, starts, ends, strict=True))
        return cat_ranges(self, paths, starts, ends)

    monkeypatch.setattr(type(files), "cat_ranges", count_ranges)
    return Dataset.open(f"memory:/{root}"), read


@pytest.mark.usefixtures("no_scan")
def test_single_rows_of_a_remote_shard_are_read_alone(
    remote_dataset: tuple[Dataset, list[tuple[str, int]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, read = remote_dataset
    monkeypatch.setattr(shards, "_MAX_GAP", 100)
    np.testing.assert_array_equal(dataset[[40, 94, 40, -1]]["input_ids"], IDS[[40, 94, 40, 94]])
    assert [name for name, _ in read] == [
        "train-00001-30.offsets",
        "train-00001-30.tfrecord",
        "train-00003-5.offsets",
        "train-00003-5.tfrecord",
    ]
    assert read[1][1] < 1000 and read[0][1] == 8 * 31
    read.clear()
    np.testing.assert_array_equal(dataset[[59, 31]]["input_ids"], IDS[[59, 31]])
    assert [name for name, _ in read] == ["train-00001-30.tfrecord"] * 2  # the offsets are kept


@pytest.mark.usefixtures("no_scan")
def test_a_shard_of_which_much_is_read_is_read_whole(
    remote_dataset: tuple[Dataset, list[tuple[str, int]]],
) -> None:
    dataset, read = remote_dataset
    for row in range(30):
        np.testing.assert_array_equal(dataset[row]["input_ids"], IDS[row])
    assert len(read) < 15
    read.clear()
    np.testing.assert_array_equal(dataset[30:60]["input_ids"], IDS[30:60])
    assert [name for name, _ in read if name.endswith(".tfrecord")] == ["train-00001-30.tfrecord"]


def test_a_range_that_comes_back_short_is_an_error(
    remote_dataset: tuple[Dataset, list[tuple[str, int]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, _ = remote_dataset
    files, _ = dataset._description.folder._connection()
    monkeypatch.setattr(type(files), "cat_ranges", lambda self, paths, *_: [b"short"] * len(paths))
    with pytest.raises(DatasetError, match="of the bytes"):
        dataset[3]
