"""MinHash signatures of sets of shingles, in bands: sets that are similar have an equal band with a high probability.

A MinHash is the smallest of (a · x + b) mod 2**64 mod (2**61 - 1) mod 2**32 over the upper halves x of a set's hashes,
with random a and b: datasketch's functions. Two sets of Jaccard similarity J have equal MinHashes with probability J. A
band is a few of them. With b bands of r MinHashes, two sets have an equal band with probability 1 - (1 - J**r)**b:

    bands × rows   J = 0.5    0.7    0.8    0.9
    18 × 7            0.13   0.79   0.99   1.00     the default for a threshold of 0.8
    14 × 8            0.05   0.56   0.92   1.00     datatrove's default
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from beam_pipeline.curation.shingles import ShingleSets
from beam_pipeline.native.library import rows_library
from beam_pipeline.support.hashing import key64, mix64

MERSENNE_PRIME = (1 << 61) - 1

_DEFAULT_HASHES = 128
_DEFAULT_RECALL = 0.975


@dataclass(frozen=True)
class Bands:
    """The number of bands of a signature, and of the MinHashes in each."""

    bands: int
    rows: int

    @classmethod
    def from_options(cls, bands: str | None, threshold: float) -> Bands:
        """Returns the bands that `--near_bands` gives, such as "14x8", or those for the threshold."""
        return cls.for_threshold(threshold) if bands is None else cls(*map(int, bands.split("x")))

    @classmethod
    def for_threshold(cls, threshold: float) -> Bands:
        """Returns the bands of most rows that propose 97.5% of the pairs of this similarity, with up to 128 MinHashes.

        >>> Bands.for_threshold(0.8)
        Bands(bands=18, rows=7)
        """
        options = (cls(_DEFAULT_HASHES // rows, rows) for rows in range(_DEFAULT_HASHES, 0, -1))
        return next(
            (bands for bands in options if bands.recall(threshold) >= _DEFAULT_RECALL),
            cls(_DEFAULT_HASHES, 1),
        )

    def recall(self, similarity: float) -> float:
        """Returns the probability that two sets of this Jaccard similarity have an equal band."""
        return 1 - (1 - similarity**self.rows) ** self.bands


@lru_cache(maxsize=4)
def hash_functions(seed: int, count: int) -> np.ndarray:
    """Returns the factors (1 to 2**61 - 2) and terms (0 to 2**61 - 2) of the hash functions: uint64 [2, count]."""
    factors = [1 + key64("minhash factor", seed, index) % (MERSENNE_PRIME - 1) for index in range(count)]
    terms = [key64("minhash term", seed, index) % MERSENNE_PRIME for index in range(count)]
    return np.array([factors, terms], np.uint64)


def band_hashes(sets: ShingleSets, bands: Bands, functions: np.ndarray) -> np.ndarray:
    """Returns a 64-bit hash of each band of each set, uint64 [sets, bands].

    Args:
        sets: None of them is empty.
        bands: The shape of the signatures.
        functions: The `hash_functions` of `bands.bands * bands.rows` MinHashes.
    """
    library = rows_library()
    if library is None:
        return hash_bands(minhashes(sets, functions), bands)
    out = np.empty((len(sets.starts) - 1, bands.bands), np.uint64)
    factors, terms = np.ascontiguousarray(functions)
    hashes, starts = np.ascontiguousarray(sets.hashes), np.ascontiguousarray(sets.starts)
    library.tokenmill_bands(
        hashes.ctypes.data,
        starts.ctypes.data,
        len(out),
        factors.ctypes.data,
        terms.ctypes.data,
        bands.bands,
        bands.rows,
        out.ctypes.data,
    )
    return out


def minhashes(sets: ShingleSets, functions: np.ndarray) -> np.ndarray:
    """Returns the MinHashes of each set, uint64 [sets, functions]; see `band_hashes`."""
    values = sets.hashes >> np.uint64(32)
    signatures = np.empty((len(sets.starts) - 1, functions.shape[1]), np.uint64)
    for index, (factor, term) in enumerate(functions.T):
        hashed = (values * factor + term) % np.uint64(MERSENNE_PRIME) & np.uint64(0xFFFFFFFF)
        signatures[:, index] = np.minimum.reduceat(hashed, sets.starts[:-1]) if len(signatures) else 0
    return signatures


def hash_bands(signatures: np.ndarray, bands: Bands) -> np.ndarray:
    """Hashes the bands of signatures, uint64 [sets, MinHashes]; see `band_hashes`."""
    rows = signatures.reshape(len(signatures), bands.bands, bands.rows)
    hashes = np.broadcast_to(np.arange(bands.bands, dtype=np.uint64), rows.shape[:2])
    for row in range(bands.rows):
        hashes = mix64(hashes ^ rows[:, :, row])
    return hashes
