"""The exact Jaccard similarity of sets of shingles: the number of common elements over that of all elements."""

from __future__ import annotations

import numpy as np

from beam_pipeline.native.library import rows_library


def jaccard(first: np.ndarray, second: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """Returns the Jaccard similarity of pairs of sets, float64 [pairs].

    >>> jaccard(np.array([1, 2, 3], np.uint64), np.array([7, 2, 3, 9], np.uint64), np.array([[0, 3, 1, 4]]))
    array([0.5])

    Args:
        first: uint64 [elements]: sets, each ascending and without repeats.
        second: The same for the other set of each pair.
        bounds: int64 [pairs, 4]: the begin and end of each pair's sets, in `first` and in `second`. None is empty.
    """
    bounds = np.ascontiguousarray(bounds, np.int64)
    common = _common_elements(first, second, bounds)
    sizes = bounds[:, 1] - bounds[:, 0] + bounds[:, 3] - bounds[:, 2]
    return common / (sizes - common)


def _common_elements(first: np.ndarray, second: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    library = rows_library()
    if library is None:
        pairs = ((first[a:b], second[c:d]) for a, b, c, d in bounds.tolist())
        return np.array([np.isin(one, other, assume_unique=True).sum() for one, other in pairs], np.int64)
    common = np.empty(len(bounds), np.int64)
    first, second = np.ascontiguousarray(first, np.uint64), np.ascontiguousarray(second, np.uint64)
    library.tokenmill_overlaps(
        first.ctypes.data, second.ctypes.data, bounds.ctypes.data, len(bounds), common.ctypes.data
    )
    return common
