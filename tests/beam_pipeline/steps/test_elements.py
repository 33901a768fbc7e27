"""Elements between steps survive pickling, and their size is about that of their arrays."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from apache_beam.coders import FastPrimitivesCoder

from beam_pipeline.rows.blocks import RowBlock
from beam_pipeline.rows.packing import Tail
from beam_pipeline.rows.routing import RowTable
from beam_pipeline.rows.tails import TailTable
from beam_pipeline.sources.units import Part, WorkUnit

IDS = np.arange(200, dtype=np.uint32).reshape(10, 20)
ELEMENTS = {
    "rows": (RowBlock(IDS, np.full(10, 20, np.uint32), np.ones((10, 3), np.uint8), np.arange(10)), 930),
    "rows of 16 bits": (RowBlock(IDS.astype(np.uint16), np.full(10, 20, np.uint32)), 440),
    "a tail": (Tail(IDS[0], np.array([3, 9])), 96),
    "a tail of 16 bits": (Tail(IDS[0].astype(np.uint16), np.array([], np.int64)), 40),
    "a table of rows": (RowTable(np.arange(12).reshape(4, 3)), 104),
    "a table of tails": (TailTable(np.arange(12).reshape(4, 3)), 104),
    "a unit": (WorkUnit(3, "text", "/in/", (Part("a.txt", 0, 9), Part("b", 2, 4, (1, 1))), 11, 1, 0.5), 120),
}


def content(element: object) -> dict:
    values = {field.name: getattr(element, field.name) for field in fields(element)}
    return {name: (v.dtype, v.tolist()) if isinstance(v, np.ndarray) else v for name, v in values.items()}


@pytest.mark.parametrize("name", ELEMENTS)
def test_an_element_arrives_as_it_was_sent(name: str):
    element, size = ELEMENTS[name]
    data = FastPrimitivesCoder().encode(element)
    assert len(data) < size + 200
    decoded = FastPrimitivesCoder().decode(data)
    assert type(decoded) is type(element)
    if isinstance(element, RowTable | TailTable):
        assert [each.tolist() for each in vars(decoded).values()] == [
            each.tolist() for each in vars(element).values()
        ]
    elif isinstance(element, RowBlock) and element.slots is not None:
        assert np.array_equal(decoded.slots, element.slots) and b"".join(decoded.parts()) == b"".join(
            element.parts()
        )
    else:
        assert content(decoded) == content(element)
    assert FastPrimitivesCoder().encode(decoded) == data
