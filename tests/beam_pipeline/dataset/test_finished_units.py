from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from beam_pipeline.dataset.bad_records import Excluded
from beam_pipeline.dataset.finished_units import FinishedUnit, create_unit, find_unit
from beam_pipeline.dataset.sections import map_section, open_sections, read_section
from beam_pipeline.dataset.statistics import SplitStatistics
from beam_pipeline.engines.fallbacks import EngineUse, Fallbacks
from beam_pipeline.rows.blocks import RowBlock
from beam_pipeline.rows.packing import Tail
from beam_pipeline.support.errors import DataError

VOCAB_SIZE = 20


def statistics(seed: int) -> SplitStatistics:
    rng = np.random.default_rng(seed)
    split_statistics = SplitStatistics.empty(VOCAB_SIZE)
    tokens = rng.integers(1, 9, 5)
    split_statistics.add_documents(
        rng.integers(0, VOCAB_SIZE, tokens.sum()), tokens, rng.integers(1, 2**33, 5)
    )
    split_statistics.add_rows(
        RowBlock(rng.integers(0, VOCAB_SIZE, (3, 8)).astype(np.uint16), np.full(3, 8, np.uint32))
    )
    return split_statistics


def write(path: Path, fingerprint: str = "f", unit: int = 3) -> FinishedUnit:
    ids = np.arange(40, dtype=np.uint16).reshape(5, 8)
    block = RowBlock(ids, np.full(5, 8, np.uint32), np.zeros((5, 1), np.uint8))
    with create_unit(str(path), identity={"fingerprint": fingerprint, "unit": unit}, splits=2) as writer:
        for split, part in [(1, slice(0, 2)), (0, slice(0, 1)), (1, slice(2, 5))]:
            writer.add(split, block.take(part))
        return writer.end(
            tails=[None, Tail(np.arange(3, dtype=np.uint16), np.array([1]))],
            statistics=[statistics(0), statistics(1)],
            excluded=Excluded(9, 3, 2, 1),
            use=EngineUse("native", "0.1", 6, Fallbacks(3, 40, Counter({"long": 2, "rare": 2}))),
            bad_records=None,
            removed=None,
            run="r",
            texts={"a.txt": 5},
        )


def test_a_finished_unit_is_found_with_all_it_contains(tmp_path: Path):
    path = str(tmp_path / "units" / "unit")
    written_unit, unit = write(Path(path)), find_unit(path, identity={"fingerprint": "f", "unit": 3})
    assert unit.blocks == written_unit.blocks
    assert [(place.split, place.first_row, place.rows) for place in unit.blocks] == [
        (1, 0, 2),
        (0, 0, 1),
        (1, 2, 3),
    ]
    assert (unit.rows(0), unit.rows(1)) == (1, 5)
    with open_sections(path) as file:
        last_block = RowBlock.from_bytes(read_section(file, unit.blocks[2].section, path))
    assert last_block.ids.tolist() == np.arange(16, 40).reshape(3, 8).tolist()
    assert unit.tails[0] is None
    assert (unit.tails[1].ids.tolist(), unit.tails[1].starts.tolist()) == ([0, 1, 2], [1])
    assert [each.to_json() for each in unit.statistics] == [statistics(seed).to_json() for seed in (0, 1)]
    assert [each.rows_checksum for each in unit.statistics] == [statistics(s).rows_checksum for s in (0, 1)]
    assert unit.excluded == Excluded(9, 3, 2, 1)
    assert unit.use == written_unit.use and unit.use.fallbacks.reasons["rare"] == 2


def test_another_runs_unit_and_a_missing_one_are_not_found(tmp_path: Path):
    path = tmp_path / "unit"
    assert find_unit(str(path), identity={"fingerprint": "f", "unit": 3}) is None
    write(path)
    assert find_unit(str(path), identity={"fingerprint": "g", "unit": 3}) is None
    assert find_unit(str(path), identity={"fingerprint": "f", "unit": 4}) is None


def test_a_damaged_or_truncated_file_is_not_used(tmp_path: Path):
    path = tmp_path / "unit"
    write(path)
    data = path.read_bytes()
    rng = np.random.default_rng(0)
    for position in [*range(0, len(data), 37), *range(len(data) - 40, len(data))]:
        damaged_data = bytearray(data)
        damaged_data[position] ^= int(rng.integers(1, 256))
        path.write_bytes(damaged_data)
        assert find_unit(str(path), identity={"fingerprint": "f", "unit": 3}) is None, position
    for size in [0, 1, 19, 20, len(data) // 2, len(data) - 1]:
        path.write_bytes(data[:size])
        assert find_unit(str(path), identity={"fingerprint": "f", "unit": 3}) is None, size
    path.write_bytes(data)
    assert find_unit(str(path), identity={"fingerprint": "f", "unit": 3}) is not None


def test_a_block_that_is_mapped_is_refused_if_it_is_damaged_or_truncated(tmp_path: Path):
    path = tmp_path / "unit"
    section = write(path).blocks[2].section
    assert RowBlock.from_bytes(map_section(str(path), section, needs_all=False)).lengths.tolist() == [8] * 3
    data = path.read_bytes()
    for size in (0, section.offset, section.offset + section.size - 1):
        path.write_bytes(data[:size])
        for needs_all in (False, True):
            with pytest.raises(DataError, match=r"damaged; --resume recomputes them"):
                map_section(str(path), section, needs_all=needs_all)
    path.write_bytes(data[: section.offset] + bytes(len(data) - section.offset))
    with pytest.raises(DataError, match=r"damaged; --resume recomputes them"):
        map_section(str(path), section, needs_all=True)


def test_a_unit_that_fails_leaves_no_file(tmp_path: Path):
    with (
        pytest.raises(RuntimeError, match="bad data"),
        create_unit(str(tmp_path / "unit"), identity={}, splits=1),
    ):
        raise RuntimeError("bad data")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
