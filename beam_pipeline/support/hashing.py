"""Hashes of integers, names, documents' places and texts that are the same in every process and version."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from beam_pipeline.support.texts import contents


def mix64(x: np.ndarray) -> np.ndarray:
    """Hashes a uint64 array with SplitMix64's finalizer (Steele, Lea and Flood, 2014).

    >>> mix64(np.array([0, 1], np.uint64))
    array([16294208416658607535, 10451216379200822465], dtype=uint64)
    """
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def key64(*parts: object) -> int:
    """Hashes `parts` (names, seeds, numbers) to a 64-bit key."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def place_hashes(purpose: str, seed: int, name: str, places: np.ndarray) -> np.ndarray:
    """Hashes the places of documents in the file `name`. Hashes for different purposes or seeds are independent.

    Args:
        purpose: The name of the decision that the hashes determine.
        seed: The run's seed.
        name: The file's path below the plan's root.
        places: int64 [documents], as in `DocumentBatch.places`.

    Returns:
        uint64 [documents].
    """
    return mix64(places.astype(np.uint64) ^ np.uint64(key64(purpose, seed, name)))


def text_hashes(texts: Sequence[str]) -> np.ndarray:
    """Hashes texts with 128-bit BLAKE2b.

    For 10**12 documents the chance of one collision is below 10**-14.

    Returns:
        uint64 [texts, 2].
    """
    digests = (hashlib.blake2b(content, digest_size=16).digest() for content in contents(texts))
    return np.frombuffer(b"".join(digests), np.uint64).reshape(-1, 2)
