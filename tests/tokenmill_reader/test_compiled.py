"""The compiled decoder gives the rows and the errors that NumPy and Python give; the tests of records run with both."""

from __future__ import annotations

import logging
import random
from pathlib import Path

import numpy as np
import pytest

from tests.tokenmill_reader.written import example, random_rows
from tokenmill_reader import compiled
from tokenmill_reader.compiled import CompiledDecoder
from tokenmill_reader.errors import RecordFault
from tokenmill_reader.examples import ExampleDecoder

LENGTH = 9


def decode_each(decoder: CompiledDecoder, records: list[bytes]) -> list[np.ndarray | None]:
    """Decodes records in one buffer, each alone; None for those that the decoder leaves to Python."""
    data = np.frombuffer(b"".join(records), np.uint8)
    ends = np.cumsum([len(record) for record in records])
    values = []
    for record, end in zip(records, ends, strict=True):
        out = np.empty((1, LENGTH), np.int32)
        places = (np.array([end - len(record)]), np.array([end]), np.array([0]))
        values.append(out[0] if decoder.decode(data, *places, {"input_ids": out}) else None)
    return values


def decode_by_python(record: bytes, *, exclusive: bool) -> np.ndarray | None:
    """Decodes a record as without compiled code; None if it is malformed."""
    decoder = ExampleDecoder(max_length=LENGTH, features=["input_ids"], exclusive=exclusive)
    decoder._compiled = None
    out = np.empty((1, LENGTH), np.int32)
    try:
        decoder.decode_records([record], {"input_ids": out})
    except RecordFault:
        return None
    return out[0]


def new_decoder(*, exclusive: bool = False) -> CompiledDecoder:
    library = compiled.library()
    assert library is not None, "the tests need a C compiler: make setup"
    return CompiledDecoder(library, max_length=LENGTH, features=["input_ids"], exclusive=exclusive)


def test_records_of_the_usual_form_need_no_python() -> None:
    rows = random_rows(200, LENGTH, largest=2**21 - 1)
    rows[0], rows[1], rows[2] = 0, 2**21 - 1, 127
    records = [example({"attention_mask": [1] * LENGTH, "input_ids": row.tolist()}) for row in rows]
    np.testing.assert_array_equal(decode_each(new_decoder(), records), rows)
    assert decode_each(new_decoder(exclusive=True), records) == [None] * len(rows)


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_what_it_decodes_of_damaged_records_python_decodes_to_the_same(seed: int, exclusive: bool) -> None:
    choose = random.Random(seed)
    records = []
    for row in random_rows(1500, LENGTH, seed=seed, largest=2**22).tolist():
        record = bytearray(
            example({"input_ids": row} | ({"other": [1, 300]} if choose.random() < 0.2 else {}))
        )
        for _ in range(choose.randint(0, 3)):
            record[choose.randrange(len(record))] = choose.choice([0, 1, 0x0A, 0x12, 0x1A, 0x7F, 0x80, 0xFF])
        records.append(bytes(record[: choose.choice([len(record)] * 5 + [choose.randrange(len(record))])]))
    decoded = decode_each(new_decoder(exclusive=exclusive), records)
    assert 100 < sum(values is not None for values in decoded) < 1400
    for record, values in zip(records, decoded, strict=True):
        if values is not None:
            np.testing.assert_array_equal(values, decode_by_python(record, exclusive=exclusive), record.hex())


def test_arrays_of_another_form_and_places_outside_of_the_data_are_not_used() -> None:
    data = np.frombuffer(example({"input_ids": range(LENGTH)}), np.uint8)
    out = np.empty((2, LENGTH), np.int32)
    one = np.array([0])

    def decode(
        start: int = 0, end: int = data.size, row: int = 0, data: np.ndarray = data, out: np.ndarray = out
    ) -> bool:
        return new_decoder().decode(data, one + start, one + end, one + row, {"input_ids": out})

    assert decode(row=1)
    assert out[1].tolist() == list(range(LENGTH))
    assert not any(
        (decode(start=-1), decode(end=data.size + 1), decode(row=2), decode(row=-1), decode(start=3, end=2))
    )
    for wrong in (out.astype(np.int64), out[:, :-1], out.T, out[:, ::-1]):
        with pytest.raises(ValueError, match="not a contiguous int32"):
            decode(out=wrong)
    with pytest.raises(ValueError, match="not a contiguous uint8"):
        decode(data=data[::2])


def test_a_library_that_cannot_be_used_is_reported_and_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "damaged.so").write_bytes(b"\x7fELF")
    with caplog.at_level(logging.WARNING):
        assert compiled.load(str(tmp_path / "damaged.so")) is None
    assert "damaged.so cannot be loaded, so rows are decoded more slowly; install again" in caplog.text
    monkeypatch.setattr(compiled, "_INTERFACE", 0)
    path = compiled.library()._name
    assert compiled.load(path) is None
    assert f"{path} is of another version" in caplog.text
