import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_pipeline.curation.shingles import ShingleSets, ShingleSize, shingle_sets
from beam_pipeline.dataset.sketches import (
    MappedSets,
    Sketches,
    kept_sketches,
    read_bands,
    read_sets,
    write_sketches,
)

IDENTITY = {"fingerprint": "f"}


def write(path: str, batches: list[list[str]]) -> tuple[np.ndarray, ShingleSets]:
    """Writes the sketches of texts, of which every third was removed by its text alone."""
    parts, first = [], 0
    for texts in batches:
        sets = shingle_sets(texts, ShingleSize(2))
        numbers = first + np.arange(len(texts)) * 3 // 2
        bands = np.arange(3 * len(texts), dtype=np.uint64).reshape(-1, 3)
        parts.append(Sketches(numbers, sets.keys(), bands, sets))
        first += 2 * len(texts)
    written = write_sketches(path, iter(parts), 3, lambda: IDENTITY)
    kept = kept_sketches(path, IDENTITY)
    np.testing.assert_array_equal(kept.numbers, written.numbers)
    np.testing.assert_array_equal(kept.keys, written.keys)
    numbers, keys, bands = read_bands(path)
    np.testing.assert_array_equal(numbers, written.numbers)
    np.testing.assert_array_equal(keys, written.keys)
    assert bands.tolist() == [row for part in parts for row in part.bands.tolist()]
    return written.numbers, ShingleSets.concatenate(part.sets for part in parts)


@given(st.lists(st.lists(st.text("ab ", max_size=20), max_size=4), max_size=3), st.data())
def test_sets_are_read_by_the_numbers_of_their_documents(tmp_path_factory, batches, data):
    path = str(tmp_path_factory.mktemp("sketches") / "unit.sketches")
    numbers, sets = write(path, batches)
    wanted = np.array(sorted(data.draw(st.sets(st.sampled_from(numbers.tolist() or [0])))), np.int64)
    wanted = wanted[np.isin(wanted, numbers)]
    expected = sets.take(np.searchsorted(numbers, wanted))
    parts = list(read_sets(path, wanted))
    assert [number for part, _ in parts for number in part.tolist()] == wanted.tolist()
    read = ShingleSets.concatenate(part for _, part in parts)
    np.testing.assert_array_equal(read.hashes, expected.hashes)
    np.testing.assert_array_equal(read.starts, expected.starts)
    mapped = MappedSets(path)
    for (start, end), index in zip(mapped.bounds(wanted).tolist(), range(len(wanted)), strict=True):
        np.testing.assert_array_equal(
            mapped.hashes[start:end], expected.hashes[slice(*expected.bounds(np.array([index]))[0])]
        )


@pytest.mark.parametrize("place", [0, 0.3, 0.6, 0.9, 1])
def test_damaged_sketches_are_not_kept(tmp_path, place):
    path = tmp_path / "unit.sketches"
    write(str(path), [["a b c d", "e f"], ["g h i"]])
    assert kept_sketches(str(path), {"fingerprint": "g"}) is None
    data = bytearray(path.read_bytes())
    data[round(place * (len(data) - 1))] ^= 1
    path.write_bytes(data)
    assert kept_sketches(str(path), IDENTITY) is None
    path.unlink()
    assert kept_sketches(str(path), IDENTITY) is None
