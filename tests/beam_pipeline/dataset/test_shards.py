import errno

import numpy as np
import pytest

from beam_pipeline import filesystem
from beam_pipeline.dataset.records import ExampleEncoder, feature_names
from beam_pipeline.dataset.shards import SHARD_NAME, assemble, shard_name, write_shard
from beam_pipeline.rows.blocks import RowBlock


def block(slots: list[int]) -> RowBlock:
    ids = np.repeat(np.array(slots, np.uint16)[:, None], 8, axis=1)
    return RowBlock(ids, np.full(len(slots), 8, np.uint32), None, np.array(slots, np.uint32))


def test_rows_stand_in_their_slots_whatever_the_order():
    whole = assemble([block([4, 0]), block([]), block([2, 1, 3])], 5, "x")
    assert whole.ids[:, 0].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ([[0, 1], [2, 2]], "1 of 3 slots .* first is 2, filled 2 times"),
        ([[0, 2]], "1 of 3 slots .* first is 1, filled 0 times"),
        ([[0, 1, 2, 3]], "slot 3 of a shard of 3"),
        ([], "3 of 3 slots"),
    ],
)
def test_lost_and_doubled_rows_are_errors(parts, reason):
    with pytest.raises(AssertionError, match=f"the-shard: {reason}"):
        assemble([block(part) for part in parts], 3, "the-shard")


def test_names():
    assert shard_name("train", 17, 5000) == "train-00017-5000.tfrecord"
    assert shard_name("train", 1234567, 1) == "train-1234567-1.tfrecord"
    found = SHARD_NAME.fullmatch("train-00017-5000.tfrecord")
    assert (found["split"], int(found["shard"]), int(found["records"])) == ("train", 17, 5000)


ENCODER = ExampleEncoder(
    max_length=8,
    max_value=100,
    features=feature_names(attention_mask=True, segment_ids=False, position_ids=False),
)


def write(folder) -> object:
    whole = assemble([block(list(range(20)))], 20, "x")
    path, temporary = str(folder / "train" / "train-00000-20.tfrecord"), str(folder / "_staging" / "x")
    return write_shard(whole, encoder=ENCODER, path=path, temporary=temporary, split=0, shard=0)


def test_a_shard_is_written_whole_and_nothing_beside_it(tmp_path):
    info = write(tmp_path)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path.name for path in files] == [info.name] == ["train-00000-20.tfrecord"]
    assert files[0].stat().st_size == info.bytes and info.records == 20


@pytest.mark.parametrize("step", ["write", "rename"])
def test_a_failure_leaves_neither_the_shard_nor_its_temporary_file(tmp_path, monkeypatch, step):
    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    if step == "rename":
        monkeypatch.setattr(filesystem, "rename", fail)
    else:
        monkeypatch.setattr(ExampleEncoder, "encode", fail)
    with pytest.raises(OSError, match="No space left"):
        write(tmp_path)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
