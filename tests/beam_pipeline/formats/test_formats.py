"""Properties of every format of rows: encoding and decoding, equal bytes for equal rows, errors for damage."""

from __future__ import annotations

import io
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipeline.dataset.records import RecordError, feature_names
from beam_pipeline.engines.token_arrays import id_dtype
from beam_pipeline.formats.base import Format, RowForm, feature_columns
from beam_pipeline.formats.choice import format_class
from beam_pipeline.rows.blocks import RowBlock

FORMATS = ("tfrecord", "arrayrecord", "parquet", "mds")
OPTIONAL = ("attention_mask", "segment_ids", "position_ids")
ALL = feature_names(attention_mask=True, segment_ids=True, position_ids=True)


def some_rows(rows: int, max_length: int, vocab_size: int, seed: int = 0) -> RowBlock:
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, vocab_size, (rows, max_length)).astype(id_dtype(vocab_size))
    lengths = rng.integers(1, max_length + 1, rows).astype(np.uint32)
    ids[np.arange(max_length) >= lengths[:, None]] = 0
    return RowBlock(ids, lengths, np.packbits(rng.integers(0, 2, (rows, max_length)) > 0, axis=1))


def decoded(row_format: Format, data: bytes, *span: int | None) -> dict[str, np.ndarray]:
    parts = list(row_format.decode(io.BytesIO(data), "the-shard", *span))
    return (
        {name: np.concatenate([part[name] for part in parts]) for name in row_format.form.features}
        if parts
        else {}
    )


@pytest.mark.parametrize(("name", "chosen_features"), [*product(FORMATS, product((True, False), repeat=3))])
@settings(max_examples=12, deadline=None)
@given(
    rows=st.integers(1, 40),
    max_length=st.integers(8, 40),
    vocab_size=st.sampled_from([1, 200, 65_536, 65_537, 2**21, 2**23, 2**31]),
    seed=st.integers(0, 9),
)
def test_decoding_inverts_encoding(name, chosen_features, rows, max_length, vocab_size, seed):
    features = feature_names(**dict(zip(OPTIONAL, chosen_features, strict=True)))
    row_format = format_class(name, of_documents=False)(
        RowForm(max_length=max_length, vocab_size=vocab_size, features=features)
    )
    block = some_rows(rows, max_length, vocab_size, seed)
    result = decoded(row_format, b"".join(row_format.encode(block)))
    assert list(result) == list(features)
    for feature, values in feature_columns(block, features).items():
        assert result[feature].dtype == np.int64
        np.testing.assert_array_equal(result[feature], values)


@pytest.fixture(scope="module", params=FORMATS)
def row_format(request) -> Format:
    return format_class(request.param, of_documents=False)(
        RowForm(max_length=4096, vocab_size=70_000, features=ALL)
    )


@pytest.fixture(scope="module")
def data(row_format: Format) -> bytes:
    return b"".join(row_format.encode(some_rows(1200, 4096, 70_000)))  # several row groups of parquet


def test_equal_rows_give_equal_bytes(row_format: Format, data: bytes):
    second = format_class(row_format.name, of_documents=False)(row_format.form)
    assert b"".join(second.encode(some_rows(1200, 4096, 70_000))) == data


@pytest.mark.parametrize(
    ("first", "count"), [(0, 1), (511, 2), (512, 600), (1199, None), (1200, 5), (700, 0), (3, None)]
)
def test_a_part_of_the_rows(row_format: Format, data: bytes, first: int, count: int | None):
    ids = some_rows(1200, 4096, 70_000).ids
    end = None if count is None else first + count
    expected = ids[first:end]
    actual = decoded(row_format, data, first, count)
    np.testing.assert_array_equal(actual["input_ids"] if actual else ids[:0], expected)


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "other"])
def test_damage_is_an_error_that_names_the_shard(row_format: Format, data: bytes, damage: str):
    # MDS has no checksums, so only the manifest's detects a change of a value.
    half = 10 if row_format.name == "mds" else len(data) // 2
    damaged_data = {
        "cut": data[:half],
        "flipped": data[:half] + bytes([data[half] ^ 1]) + data[half + 1 :],
        "empty": b"" if row_format.name != "tfrecord" else data[:5],
        "other": b"PAR1" + bytes(1000) + b"PAR1",
    }[damage]
    with pytest.raises(RecordError, match="the-shard"):
        decoded(row_format, damaged_data)


@pytest.mark.parametrize(
    "change", [{"max_length": 4095}, {"features": ("input_ids",)}, {"features": (*ALL, "other")}]
)
def test_rows_of_another_form_are_an_error(row_format: Format, data: bytes, change: dict):
    form = {"max_length": 4096, "vocab_size": 70_000, "features": ALL} | change
    with pytest.raises(RecordError, match=r"4095|columns|features|has no other"):
        decoded(format_class(row_format.name, of_documents=False)(RowForm(**form)), data)
