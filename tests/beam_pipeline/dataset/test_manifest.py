"""The schema of a dataset's records, which is written as text, is what tensorflow_metadata reads and writes."""

import pytest
from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2

from beam_pipeline.dataset.manifest import schema_pbtxt

FEATURES = ("attention_mask", "input_ids", "position_ids", "segment_ids")


@pytest.mark.parametrize(("features", "max_length"), [(FEATURES, 8), (("input_ids",), None)])
def test_tensorflow_metadata_reads_the_schema_and_writes_the_same_text(features, max_length):
    text = schema_pbtxt(features, max_length, 300)
    schema = text_format.Parse(text, schema_pb2.Schema())
    assert text_format.MessageToString(schema).encode() == text
    assert [feature.name for feature in schema.feature] == list(features)
    by_name = {feature.name: feature for feature in schema.feature}
    ids = by_name["input_ids"]
    assert (ids.type, ids.int_domain.min, ids.int_domain.max) == (schema_pb2.INT, 0, 299)
    if max_length is None:
        assert ids.value_count.min == 1 and not ids.HasField("shape")
    else:
        assert [size.size for size in ids.shape.dim] == [8]
        largest = {name: feature.int_domain.max for name, feature in by_name.items()}
        assert largest == {"attention_mask": 1, "input_ids": 299, "position_ids": 7, "segment_ids": 8}
