"""Seeded hashes that are the same in every process and version: of documents' places, of their texts, of integers."""

from __future__ import annotations

import hashlib

import numpy as np


def mix64(x: np.ndarray) -> np.ndarray:
    """SplitMix64's finaliser (Steele, Lea and Flood, 2014) on a uint64 array: a good hash of 64-bit integers."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def key64(*parts: object) -> int:
    """A 64-bit key from `parts` (names, seeds, numbers): the same in every process and version."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def place_hashes(purpose: str, seed: int, name: str, places: np.ndarray) -> np.ndarray:
    """Hashes the places of documents in the file `name`; each purpose and seed has hashes of its own.

    Args:
      purpose: what the hashes decide.
      seed: the run's.
      name: the file's path below the plan's root.
      places: int64 [documents], as in `DocumentBatch.places`.

    Returns:
      uint64 [documents].
    """
    return mix64(places.astype(np.uint64) ^ np.uint64(key64(purpose, seed, name)))


def text_hashes(texts: list[str]) -> np.ndarray:
    """128-bit BLAKE2b hashes of texts, uint64 [texts, 2].

    Equal texts have equal hashes. For 10**12 documents the chance of one collision is below 10**-14.
    """
    # surrogatepass: a lone surrogate is no valid UTF-8, but it must not stop a hash.
    digests = (
        hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest() for text in texts
    )
    return np.frombuffer(b"".join(digests), np.uint64).reshape(-1, 2)
