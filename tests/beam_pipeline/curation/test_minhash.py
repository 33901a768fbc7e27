import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_pipeline.curation import minhash, similarity
from beam_pipeline.curation.minhash import Bands, band_hashes, hash_bands, hash_functions, minhashes
from beam_pipeline.curation.shingles import ShingleSets
from beam_pipeline.curation.similarity import jaccard

hashes = st.one_of(st.integers(0, 2**64 - 1), st.integers(0, 20))
sets_of_hashes = st.lists(st.sets(hashes, min_size=1, max_size=9), max_size=6)


def shingle_sets(sets: list[set[int]]) -> ShingleSets:
    parts = [np.array(sorted(part), np.uint64) for part in sets]
    starts = np.cumsum([0, *map(len, parts)])
    return ShingleSets(np.concatenate([np.empty(0, np.uint64), *parts]), starts)


def datasketch_minhash(values: set[int], functions: np.ndarray) -> list[int]:
    """As `datasketch.MinHash.update_batch`, with the upper halves as hash values and `functions` as permutations."""
    a, b = functions
    hash_values = np.array([value >> 32 for value in values], np.uint64)
    mersenne_prime, max_hash = np.uint64((1 << 61) - 1), np.uint64((1 << 32) - 1)
    permuted = np.bitwise_and((hash_values[:, None] * a + b) % mersenne_prime, max_hash)
    return permuted.min(axis=0).tolist()


@given(sets_of_hashes, st.integers(1, 5), st.integers(1, 5), st.integers(0, 9))
def test_minhashes_are_those_of_datasketch_compiled_or_not(sets, bands, rows, seed):
    functions = hash_functions(seed, bands * rows)
    signatures = minhashes(shingle_sets(sets), functions)
    assert signatures.tolist() == [datasketch_minhash(values, functions) for values in sets]
    shape = Bands(bands, rows)
    compiled = band_hashes(shingle_sets(sets), shape, functions)
    np.testing.assert_array_equal(compiled, hash_bands(signatures, shape))


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**61 - 1), st.integers(0, 2**61 - 2))
def test_one_minhash_is_exact_for_any_factor_and_term(value, factor, term):
    expected = (factor * (value >> 32) + term) % 2**64 % (2**61 - 1) % 2**32
    functions = np.array([[factor], [term]], np.uint64)
    sets = ShingleSets(np.array([value], np.uint64), np.array([0, 1]))
    assert minhashes(sets, functions).tolist() == [[expected]]
    np.testing.assert_array_equal(
        band_hashes(sets, Bands(1, 1), functions), hash_bands(minhashes(sets, functions), Bands(1, 1))
    )


def test_the_share_of_equal_minhashes_is_the_similarity():
    rng = np.random.default_rng(0)
    values = rng.integers(0, 2**64, 3000, np.uint64, endpoint=False)
    sets = shingle_sets([set(values[:2000].tolist()), set(values[1000:].tolist())])
    one, other = minhashes(sets, hash_functions(0, 1024))
    assert abs((one == other).mean() - 1 / 3) < 0.05


def test_equal_sets_have_equal_bands_and_bands_differ():
    sets = shingle_sets([{1 << 40, 2 << 40}, {1 << 40, 2 << 40}, {3 << 40}])
    one, same, other = band_hashes(sets, Bands(4, 2), hash_functions(7, 8)).tolist()
    assert one == same and not set(one) & set(other) and len(set(one)) == 4


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0])
def test_default_bands_propose_nearly_all_pairs_above_the_threshold(threshold):
    bands = Bands.for_threshold(threshold)
    assert bands.recall(threshold) >= 0.975 and bands.bands * bands.rows <= 128


def test_bands_are_those_of_the_option_if_it_is_given():
    assert Bands.from_options("14x8", 0.8) == Bands(14, 8)
    assert Bands.from_options(None, 0.8) == Bands(18, 7)


@given(sets_of_hashes, sets_of_hashes, st.booleans())
def test_similarities_are_exact(first, second, compiled):
    ones, others = shingle_sets(first), shingle_sets(second)
    pairs = [(i, j) for i in range(len(first)) for j in range(len(second))]
    bounds = [(*ones.starts[[i, i + 1]], *others.starts[[j, j + 1]]) for i, j in pairs]
    with pytest.MonkeyPatch.context() as patch:
        if not compiled:
            patch.setattr(similarity, "rows_library", lambda: None)
            patch.setattr(minhash, "rows_library", lambda: None)
        values = jaccard(ones.hashes, others.hashes, np.array(bounds, np.int64).reshape(-1, 4))
    assert values.tolist() == [len(first[i] & second[j]) / len(first[i] | second[j]) for i, j in pairs]
