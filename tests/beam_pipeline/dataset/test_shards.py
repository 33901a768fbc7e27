import errno
import re
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import google_crc32c
import numpy as np
import pytest

from beam_pipeline.dataset.offsets import OffsetFinder
from beam_pipeline.dataset.records import feature_names
from beam_pipeline.dataset.shards import Assembly, ShardInfo, assemble, files_of_shard, write_shard
from beam_pipeline.formats.base import RowForm
from beam_pipeline.formats.tfrecord import TFRecord
from beam_pipeline.rows.blocks import RowBlock
from beam_pipeline.support import filesystem
from beam_pipeline.support.errors import DataError, LockLost
from tokenmill_reader.format.names import SHARD_NAME, shard_name


def block(slots: list[int]) -> RowBlock:
    ids = np.repeat(np.array(slots, np.uint16)[:, None], 8, axis=1)
    return RowBlock(ids, np.full(len(slots), 8, np.uint32), None, np.array(slots, np.uint32))


def test_rows_are_put_into_their_slots_in_whatever_order_they_come():
    assembled = assemble([block([4, 0]), block([]), block([2, 1, 3])], 5, "x")
    assert assembled.ids[:, 0].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ([[0, 1], [2, 2]], "1 of 3 slots .* first is 2, filled 2 times"),
        ([[0, 2]], "1 of 3 slots .* first is 1, filled 0 times"),
        ([[0, 1, 2, 3]], "a row has slot 3, but the shard has 3 slots"),
        ([], "3 of 3 slots"),
    ],
)
def test_lost_and_duplicated_rows_are_errors(parts, reason):
    with pytest.raises(AssertionError, match=f"the-shard: {reason}"):
        assemble([block(part) for part in parts], 3, "the-shard")


@pytest.mark.parametrize("fault", ["none", "lost", "duplicated"])
def test_rows_that_several_threads_add_are_whole_or_an_error(fault):
    slots = np.random.default_rng(0).permutation(4000)
    if fault == "duplicated":
        slots[0] = slots[-1]
    parts = np.array_split(slots[fault == "lost" :], 100)
    assembly = Assembly(4000, "x")
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda part: assembly.add(block(part.tolist()), part), parts))
    if fault == "none":
        assert assembly.rows().ids[:, 0].tolist() == list(range(4000))
    else:
        with pytest.raises(AssertionError, match="rows were lost or duplicated"):
            assembly.rows()


def test_rows_of_another_block_must_have_the_same_size_and_exist():
    assembly = Assembly(4, "x")
    assembly.add(block([0, 1]), np.array([0, 1]))
    wide = RowBlock(np.zeros((1, 9), np.uint16), np.ones(1, np.uint32))
    other = RowBlock(np.zeros((1, 8), np.uint32), np.ones(1, np.uint32))
    for foreign in (wide, other):
        with pytest.raises(ValueError, match=r"rows of .* are not of"):
            assembly.add(foreign, np.array([2]))
    for rows in ([5], [-1]):
        with pytest.raises(IndexError, match="not among the 2 rows"):
            assembly.add(block([0, 1]), np.array([2]), np.array(rows))


def test_adding_a_few_rows_takes_no_memory_or_time_for_the_others():
    assembly = Assembly(1 << 20, "x")
    assembly.add(block([0]), np.array([0]))
    tracemalloc.start()
    assembly.add(block([1]), np.array([1]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 16


def test_shard_names_have_the_split_the_number_and_the_records():
    assert shard_name("train", 17, 5000, "tfrecord") == "train-00017-5000.tfrecord"
    assert shard_name("train", 1234567, 1, "parquet") == "train-1234567-1.parquet"
    match = SHARD_NAME.fullmatch("train-00017-5000.tfrecord")
    assert (match["split"], int(match["shard"]), int(match["records"])) == ("train", 17, 5000)


FEATURES = feature_names(attention_mask=True, segment_ids=False, position_ids=False)


def write(folder, before_publishing=lambda info: None) -> ShardInfo:
    rows = assemble([block(list(range(20)))], 20, "x")
    path, temporary = str(folder / "train" / "train-00000-20.tfrecord"), str(folder / "_staging" / "x")
    return write_shard(
        rows,
        encode=TFRecord(RowForm(max_length=8, vocab_size=100, features=FEATURES)).encode,
        with_offsets=True,
        path=path,
        temporary=temporary,
        split=0,
        shard=0,
        before_publishing=before_publishing,
    )


def files_in(folder) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


FILES = ["train/offsets/train-00000-20.offsets", "train/train-00000-20.tfrecord"]


def test_writing_a_shard_leaves_no_other_file(tmp_path):
    info = write(tmp_path)
    assert files_in(tmp_path) == FILES
    assert info.name == "train-00000-20.tfrecord" and info.records == 20
    assert (tmp_path / FILES[1]).stat().st_size == info.bytes


def test_offsets_are_the_places_of_the_records(tmp_path):
    info = write(tmp_path)
    data, offsets = (tmp_path / FILES[1]).read_bytes(), np.fromfile(tmp_path / FILES[0], "<u8").tolist()
    assert len(offsets) == 21 and offsets[0] == 0 and offsets[-1] == len(data)
    for first, end in pairwise(offsets):
        assert int.from_bytes(data[first : first + 8], "little") == end - first - 16
    for name, (size, crc) in files_of_shard(info.to_json()).items():
        listed_data = (tmp_path / "train" / name).read_bytes()
        assert (size, crc) == (len(listed_data), f"{google_crc32c.value(listed_data):08x}")


@pytest.mark.parametrize("size", [1, 7, 8, 100])
def test_offsets_do_not_depend_on_the_pieces_of_the_file(tmp_path, size):
    write(tmp_path)
    data, finder = (tmp_path / FILES[1]).read_bytes(), OffsetFinder()
    for first in range(0, len(data), size):
        finder.add(data[first : first + size])
    assert finder.to_bytes() == (tmp_path / FILES[0]).read_bytes()


def test_an_attempt_that_was_killed_between_the_files_is_completed(tmp_path):
    info = write(tmp_path)
    (tmp_path / FILES[0]).unlink()
    assert write(tmp_path) == info
    assert files_in(tmp_path) == FILES


def test_a_second_attempt_writes_nothing(tmp_path):
    info = write(tmp_path)
    shard = tmp_path / "train" / info.name
    before = shard.stat().st_ino
    assert write(tmp_path) == info
    assert shard.stat().st_ino == before
    assert files_in(tmp_path) == FILES


@pytest.mark.parametrize("hard_links", [True, False])
@pytest.mark.parametrize("name", FILES)
def test_an_existing_file_with_other_content_is_never_replaced(tmp_path, monkeypatch, hard_links, name):
    if not hard_links:
        monkeypatch.setattr(filesystem.os, "link", no_hard_links)
    shard_path = tmp_path / name
    shard_path.parent.mkdir(parents=True)
    shard_path.write_bytes(b"precious")
    with pytest.raises(DataError, match=re.escape(f"{name}: already exists, and this run did not write it")):
        write(tmp_path)
    assert set(files_in(tmp_path)) <= set(FILES)
    assert shard_path.read_bytes() == b"precious"


def no_hard_links(*_, **__):
    raise OSError(errno.EPERM, "Operation not permitted")


def test_without_hard_links_a_shard_is_renamed(tmp_path, monkeypatch):
    monkeypatch.setattr(filesystem.os, "link", no_hard_links)
    write(tmp_path)
    assert files_in(tmp_path) == FILES


def test_an_error_before_publishing_prevents_the_shard(tmp_path):
    def lose_lock(info):
        raise LockLost("another run has taken it over")

    with pytest.raises(LockLost):
        write(tmp_path, lose_lock)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("step", ["write", "publish"])
def test_a_failure_leaves_neither_the_shard_nor_its_temporary_file(tmp_path, monkeypatch, step):
    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    if step == "publish":
        monkeypatch.setattr(filesystem, "_move_to_new", fail)
    else:
        monkeypatch.setattr(TFRecord, "encode", fail)
    with pytest.raises(OSError, match="No space left"):
        write(tmp_path)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
