import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_pipeline.rows.permutation import Permutation


@given(st.integers(0, 5000), st.integers())
def test_is_a_bijection(length, seed):
    places = Permutation(length, seed)(np.arange(length))
    assert np.array_equal(np.sort(places), np.arange(length))


@given(st.integers(1, 2**61), st.integers(), st.lists(st.integers(0, 2**61), min_size=1, max_size=50))
def test_inverse_undoes_it_at_any_size(length, seed, indices):
    permutation = Permutation(length, seed)
    indices = np.array(indices, np.uint64) % np.uint64(length)
    places = permutation(indices)
    assert (places < length).all()
    assert np.array_equal(permutation.inverse(places), indices)


def test_is_a_function_of_the_key_alone():
    # Recorded values: if they change, so do the bytes of every dataset.
    assert Permutation(100, 1, "train")(np.arange(8)).tolist() == [50, 47, 73, 19, 36, 74, 28, 60]


def test_spreads_neighbours_uniformly():
    length, parts = 100_000, 100
    places = Permutation(length, 7)(np.arange(length))
    # How many indices of each hundredth of the input went to each hundredth of the output. Chi-squared with 99 degrees
    # of freedom has mean 99 and standard deviation 14.
    table = np.zeros((parts, parts))
    np.add.at(table, (np.arange(length) * parts // length, places.astype(np.int64) * parts // length), 1)
    chi_squared = ((table - 10) ** 2 / 10).sum(axis=1)
    assert abs(chi_squared.mean() - 99) < 5
    # Neighbours are separated.
    assert (np.abs(np.diff(places.astype(np.int64))) == 1).sum() < 20


def test_refuses_what_is_outside():
    with pytest.raises(IndexError, match=r"index 5 is out of range \[0, 5\)"):
        Permutation(5, 0)(np.array([5]))
    with pytest.raises(ValueError, match="length"):
        Permutation(-1, 0)
