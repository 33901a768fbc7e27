"""A seeded bijection of [0, n), computed per index: the global shuffle, without a table and without sorting."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from beam_pipeline.support.hashing import key64, mix64

_ROUNDS = 6


class Permutation:
    """A bijection of [0, length), made of a Feistel network with cycle walking.

    The network permutes [0, 2**bits), the smallest such range that contains `length` indices. An index that lands
    outside of [0, length) goes through the network again until it lands inside (Black and Rogaway, "Ciphers with
    arbitrary finite domains", 2002). Each call costs a few array operations, whatever `length` is.

    >>> permutation = Permutation(5, "seed", "split")
    >>> places = permutation(np.arange(5))
    >>> places.tolist(), permutation.inverse(places).tolist()
    ([2, 3, 0, 4, 1], [0, 1, 2, 3, 4])

    Args:
        length: The number of indices, at least 0.
        key: Values whose `str` identifies the shuffle, such as seed and split.
    """

    def __init__(self, length: int, *key: object):
        if not 0 <= length < 2**62:
            raise ValueError(f"a permutation's length must be in [0, 2**62), not {length}")
        self.length = length
        bits = max(2, (length - 1).bit_length())
        self._high, self._low = np.uint64(bits // 2), np.uint64(bits - bits // 2)
        self._keys = [np.uint64(key64("permutation", *key, i)) for i in range(_ROUNDS)]

    def __call__(self, index: np.ndarray) -> np.ndarray:
        """Returns the places of `index` (integers in [0, length)), as uint64 of the same shape."""
        return self._walk(index, self._forward)

    def inverse(self, place: np.ndarray) -> np.ndarray:
        """Returns the indices whose places are `place`: `inverse(self(i)) == i`."""
        return self._walk(place, self._backward)

    def _walk(self, index: np.ndarray, step: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """Applies `step` to each index until the result is below `length`: cycle walking."""
        x = np.asarray(index).astype(np.uint64)
        if x.size and int(x.max()) >= self.length:
            raise IndexError(f"index {int(x.max())} is out of range [0, {self.length})")
        # The network permutes a larger range, so an index inside [0, length) is on a cycle that returns there. So the
        # walk along the cycle ends, and no two indices end at the same place.
        shape, x = x.shape, step(x.ravel())
        outside = np.flatnonzero(x >= np.uint64(self.length))
        while outside.size:
            x[outside] = step(x[outside])
            outside = outside[x[outside] >= np.uint64(self.length)]
        return x.reshape(shape)

    def _forward(self, x: np.ndarray) -> np.ndarray:
        """Applies the Feistel network to uint64 [n] in [0, 2**bits)."""
        # Each round mixes the right half into the left half and swaps the halves. Their widths may differ by one
        # bit, so the widths are swapped, too.
        high, low = self._high, self._low
        bit = np.uint64(1)
        for key in self._keys:
            high_half, low_half = x >> low, x & ((bit << low) - bit)
            high_half ^= mix64(low_half + key) & ((bit << high) - bit)
            x = (low_half << high) | high_half
            high, low = low, high
        return x

    def _backward(self, x: np.ndarray) -> np.ndarray:
        """Inverts `_forward`: the same rounds in reverse order."""
        high, low = self._high, self._low
        bit = np.uint64(1)
        for key in reversed(self._keys):
            high, low = low, high
            high_half, low_half = x & ((bit << high) - bit), x >> high
            high_half ^= mix64(low_half + key) & ((bit << high) - bit)
            x = (high_half << low) | low_half
        return x
