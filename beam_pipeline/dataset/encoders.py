"""Encodes rows as `tf.Example` records in TFRecord framing, many rows per call and without TensorFlow.

The bytes of a record equal `tf.train.Example(...).SerializeToString(deterministic=True)`. `benchmarks/records.py`
compares the encoders with tfx_bsl's C++, which needs int64 copies of all features, eight times the size of a block, and
serializes features in an order that changes from record to record.

Formats: https://protobuf.dev/programming-guides/encoding, tensorflow/core/example/example.proto, and for the framing
tensorflow/core/lib/io/record_writer.h: length (uint64), masked CRC-32C of the length, data, masked CRC-32C of the data.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from beam_pipeline.dataset.records import CRC, LENGTH
from beam_pipeline.engines.token_arrays import ids_of, targets_of
from beam_pipeline.native import library as native
from beam_pipeline.rows.blocks import RowBlock
from beam_pipeline.rows.packing import segments_and_positions
from tokenmill_reader.format.limits import MOST_IDS
from tokenmill_reader.framing import masked_crc

if TYPE_CHECKING:
    from google.protobuf.message import Message


def encode_rows(block: RowBlock, *, features: tuple[str, ...], max_value: int) -> np.ndarray:
    """Encodes rows as TFRecord frames, in the block's order: by the compiled functions if they are installed.

    Args:
        block: The rows.
        features: Names, as `feature_names` returns them.
        max_value: The largest value that occurs (an id, a segment or a position), below 2**31.

    Returns:
        uint8 [bytes].
    """
    if not 0 <= max_value < MOST_IDS:
        raise ValueError(f"values up to {max_value} are not from 0 to {MOST_IDS - 1}")
    library = native.rows_library()
    if library is None:
        return np.frombuffer(encode_by_protobuf(block, features=features), np.uint8)
    columns = _columns(block, features)
    return native.encode_rows(library, columns, block.lengths, block.ids.shape[1], max_value)


def encode_by_protobuf(block: RowBlock, *, features: tuple[str, ...]) -> bytes:
    """Does what `encode_rows` does, without compiled functions and in 25 times their CPU."""
    mask = np.arange(block.ids.shape[1]) < block.lengths[:, None]
    columns = {
        name: (mask if values is None else values).astype(np.int64).tolist()
        for name, values in _columns(block, features)
    }
    frames: list[bytes] = []
    for row in range(len(block)):
        example = _example_class()()
        for name, values in columns.items():
            example.features.feature[name].int64_list.value.extend(values[row])
        data = example.SerializeToString(deterministic=True)
        length = LENGTH.pack(len(data))
        frames += (length, CRC.pack(masked_crc(length)), data, CRC.pack(masked_crc(data)))
    return b"".join(frames)


def _columns(block: RowBlock, features: tuple[str, ...]) -> list[tuple[str, np.ndarray | None]]:
    """Returns the names and the values of the features; None for the attention mask, which follows from the lengths."""
    values: dict[str, np.ndarray | None] = {"attention_mask": None, "input_ids": block.ids}
    if "loss_mask" in features:
        values["input_ids"], values["loss_mask"] = ids_of(block.ids), targets_of(block.ids)
    if not {"segment_ids", "position_ids"}.isdisjoint(features):
        values["segment_ids"], values["position_ids"] = segments_and_positions(block)
    return [(name, values[name]) for name in features]


@cache
def _example_class() -> type[Message]:
    """Returns the class of `tf.Example`s whose features are integers. TensorFlow's own takes seconds to import."""
    from google.protobuf import descriptor_pb2, message_factory

    file = descriptor_pb2.FileDescriptorProto(
        name="tokenmill/example.proto", package="tokenmill", syntax="proto3"
    )
    field = descriptor_pb2.FieldDescriptorProto
    optional, repeated, message = field.LABEL_OPTIONAL, field.LABEL_REPEATED, field.TYPE_MESSAGE
    int64_list, feature, features, example = (
        file.message_type.add(name=name) for name in ("Int64List", "Feature", "Features", "Example")
    )
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    int64_list.field.add(name="value", number=1, type=field.TYPE_INT64, label=repeated)
    feature.field.add(name="int64_list", number=3, type=message, type_name="Int64List", label=optional)
    entry.field.add(name="key", number=1, type=field.TYPE_STRING, label=optional)
    entry.field.add(name="value", number=2, type=message, type_name="Feature", label=optional)
    features.field.add(name="feature", number=1, type=message, type_name="FeatureEntry", label=repeated)
    example.field.add(name="features", number=1, type=message, type_name="Features", label=optional)
    return message_factory.GetMessages([file])["tokenmill.Example"]
