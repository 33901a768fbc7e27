import io
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from beam_pipeline.dataset.encoders import encode_by_protobuf, encode_rows
from beam_pipeline.dataset.records import (
    RecordError,
    decode_frames,
    feature_names,
    max_record_bytes,
    read_frames,
)
from beam_pipeline.engines.token_arrays import Documents
from beam_pipeline.rows.blocks import RowBlock
from beam_pipeline.rows.packing import Packer, segments_and_positions

ALL = feature_names(attention_mask=True, segment_ids=True, position_ids=True)
PLAIN = feature_names(attention_mask=True, segment_ids=False, position_ids=False)


def encode(block: RowBlock, features, max_value=2**31 - 1) -> bytes:
    """Returns the bytes on which all encoders of this installation agree."""
    data = encode_by_protobuf(block, features=features)
    assert encode_rows(block, features=features, max_value=max_value).tobytes() == data
    return data


def frames(data: bytes) -> list[bytes]:
    return list(read_frames(io.BytesIO(data), "some.tfrecord"))


@settings(max_examples=50)
@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=10),
    st.integers(0, 2**32),
    st.sampled_from([ALL, PLAIN]),
)
def test_bytes_are_those_of_tensorflow(lengths, seed, features):
    import tensorflow as tf

    rng = np.random.default_rng(seed)
    lengths = np.array(lengths, np.int64)
    # Varints of one to five bytes.
    ids = rng.choice(
        [0, 1, 127, 128, 300, 16383, 16384, 60000, 2**21, 2**28, 2**31 - 1], lengths.sum()
    ).astype(np.uint32)
    packer = Packer(packing="pad", max_length=12, pad_id=7, keep_starts=True)
    assert not list(packer.add(Documents(ids, lengths)))
    block, _ = packer.finish()
    segments, positions = segments_and_positions(block)
    mask = (np.arange(12) < block.lengths[:, None]).astype(np.int64)
    columns = {
        "input_ids": block.ids,
        "attention_mask": mask,
        "segment_ids": segments,
        "position_ids": positions,
    }
    expected = []
    for row in range(len(block)):
        example = tf.train.Example()
        for name in features:
            example.features.feature[name].int64_list.value.extend(columns[name][row].tolist())
        expected.append(example.SerializeToString(deterministic=True))
    assert frames(encode(block, features)) == expected
    [decoded] = decode_frames(iter(expected), max_length=12, features=features)
    for name in features:
        assert np.array_equal(decoded[name], columns[name])


def test_tensorflow_reads_the_framing(tmp_path):
    import tensorflow as tf

    block = RowBlock(np.arange(40, dtype=np.uint16).reshape(5, 8), np.full(5, 8, np.uint32))
    path = tmp_path / "a.tfrecord"
    path.write_bytes(encode(block, PLAIN))
    records = [record.numpy() for record in tf.data.TFRecordDataset(str(path))]
    assert records == frames(path.read_bytes())


def test_errors_name_the_damaged_record_and_its_byte():
    block = RowBlock(np.arange(16, dtype=np.uint16).reshape(2, 8), np.full(2, 8, np.uint32))
    data = encode(block, PLAIN)
    offset = len(encode(block.take(slice(0, 1)), PLAIN))
    with pytest.raises(
        RecordError, match=rf"some.tfrecord: record 1 at byte {offset}: the file ends within the record"
    ):
        frames(data[:-1])
    with pytest.raises(
        RecordError, match=rf"record 1 at byte {offset}: the file ends within the record's length"
    ):
        frames(data[: offset + 3])
    damaged_data = bytearray(data)
    damaged_data[offset + 20] ^= 1
    with pytest.raises(
        RecordError, match=rf"record 1 at byte {offset}: the checksum of the record's data is wrong"
    ):
        frames(bytes(damaged_data))
    damaged_data = bytearray(data)
    damaged_data[0] ^= 1
    with pytest.raises(RecordError, match="record 0 at byte 0: the checksum of the record's length is wrong"):
        frames(bytes(damaged_data))


def test_errors_name_wrong_features():
    records = frames(encode(RowBlock(np.ones((1, 8), np.uint16), np.array([8], np.uint32)), PLAIN))
    with pytest.raises(
        RecordError, match="record 0 has the features 'attention_mask', 'input_ids', not only 'input_ids'"
    ):
        next(decode_frames(iter(records), max_length=8, features=("input_ids",)))
    with pytest.raises(RecordError, match="record 0 has 8 values in attention_mask, not 9"):
        next(decode_frames(iter(records), max_length=9, features=PLAIN))
    import tensorflow as tf

    empty = tf.train.Example()
    empty.features.feature["input_ids"].int64_list.value.extend(range(8))
    empty.features.feature["attention_mask"].SetInParent()
    with pytest.raises(RecordError, match="record 0 has 0 values in attention_mask, not 8"):
        next(decode_frames(iter([empty.SerializeToString()]), max_length=8, features=PLAIN))


def test_values_above_31_bits_are_rejected():
    with pytest.raises(ValueError, match="2147483647"):
        encode(RowBlock(np.zeros((1, 8), np.uint16), np.array([8], np.uint32)), PLAIN, max_value=2**31)


def test_long_rows_are_decoded_a_few_at_a_time():
    max_length, features = 1 << 17, ("attention_mask", "input_ids")
    block = RowBlock(np.ones((1, max_length), np.uint16), np.array([max_length], np.uint32))
    frame = encode_rows(block, features=features, max_value=1).tobytes()
    record = frame[12:-4]
    assert len(record) <= max_record_bytes(max_length, features)
    sizes = [
        sum(values.nbytes for values in columns.values())
        for columns in decode_frames(iter([record] * 19), max_length=max_length, features=features)
    ]
    assert sum(sizes) == 19 * 2 * 8 * max_length and max(sizes) <= 4 << 20


def test_a_record_that_is_too_large_is_not_read():
    block = RowBlock(np.ones((1, 8), np.uint16), np.array([8], np.uint32))
    frame = encode_rows(block, features=("input_ids",), max_value=1).tobytes()
    max_bytes = len(frame) - 16
    assert list(read_frames(io.BytesIO(frame), "x", max_bytes)) == [frame[12:-4]]
    with pytest.raises(
        RecordError, match=rf"x: record 0 at byte 0: the record has {max_bytes} bytes; the maximum is"
    ):
        next(read_frames(io.BytesIO(frame), "x", max_bytes - 1))
