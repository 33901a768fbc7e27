"""Descriptions of a row's work units and files."""

from __future__ import annotations

from beam_pipeline.sources.units import Part, WorkUnit
from beam_pipeline.views.describing import describe_unit, describe_units


def test_a_units_files_are_described_by_what_their_ranges_count():
    def unit(kind: str, parts: int, **fields) -> WorkUnit:
        names = [Part(f"f{i}\x1b", i, i + 2) for i in range(parts)]
        return WorkUnit(0, kind, "/data/", tuple(names), 10, **fields)

    assert describe_unit(unit("text", 1)) == [r"/data/f0\x1b, bytes 0 to 2"]
    assert describe_unit(unit("parquet", 1))[0].endswith("row groups 0 to 1, counted from 0")
    lines = describe_unit(unit("text", 100, repeat=1, share=0.5))
    assert len(lines) == 6
    assert describe_units([unit("text", 1)] * 10)[-1] == "… and 2 more work units"
    assert lines[-2:] == ["… and 96 more files", "repeat 2 of the mixture, 0.5 of the documents"]
