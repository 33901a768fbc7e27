"""Candidate pairs of near-duplicates: documents with an equal band of MinHashes.

Documents have ids: uint64, the unit's number in the upper half and the document's number in the lower. Their order is
that of the input: of several near-duplicates, the one with the smallest id is kept, unless they have scores.

Most groups of documents with an equal band are small, and all their pairs are compared. In a large one, each document
is compared with the eight before it, the first, and a pseudo-random earlier one, which connects the group as far as its
documents are similar. So the number of pairs is proportional to that of documents, even if all have an equal band.
`Proposed.skipped` counts the pairs that are not compared.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from beam_pipeline.support.grouping import run_starts
from beam_pipeline.support.hashing import mix64

WINDOW = 8
MOST_SENT = 4
"""The number of a unit's documents with an equal band that are compared with those of other units."""

ENTRY = np.dtype([("hash", "<u8"), ("document", "<u4")])
"""The hash of a band, and the number of its document in the unit."""


class Proposed(NamedTuple):
    """Candidate pairs."""

    pairs: np.ndarray
    """uint64 [pairs, 2]: the ids of the later and the earlier document of each pair."""
    skipped: int
    """The number of pairs with an equal band that are not compared, since their group is too large."""


def document_ids(unit: int, documents: np.ndarray) -> np.ndarray:
    """Returns the ids of a unit's documents with these numbers: uint64."""
    return np.uint64(unit) << np.uint64(32) | documents.astype(np.uint64)


def units_of(ids: np.ndarray) -> np.ndarray:
    """Returns the numbers of the documents' units, int64."""
    return (ids >> np.uint64(32)).astype(np.int64)


def documents_of(ids: np.ndarray) -> np.ndarray:
    """Returns the numbers of the documents in their units, int64."""
    return (ids & np.uint64(0xFFFFFFFF)).astype(np.int64)


def group_starts(hashes: np.ndarray) -> np.ndarray:
    """Returns the index at which the group of each item begins, given sorted hashes: int64.

    >>> group_starts(np.array([4, 6, 6, 7]))
    array([0, 1, 1, 3])
    """
    return run_starts(hashes[1:] != hashes[:-1], len(hashes))


def propose(ids: np.ndarray, starts: np.ndarray, from_rank: int = 1) -> Proposed:
    """Proposes pairs within groups.

    >>> propose(np.array([5, 8, 9, 2], np.uint64), np.array([0, 0, 0, 3])).pairs.tolist()
    [[8, 5], [9, 8], [9, 5]]

    Args:
        ids: uint64 [documents]: the ids of the documents, sorted by group, then by id.
        starts: int64 [documents]: `group_starts`.
        from_rank: The place in its group, from 0, from which on a document is the later one of pairs.
    """
    places = np.arange(len(ids))
    ranks = places - starts
    laters, earliers = [], []
    for distance in range(1, WINDOW + 1):
        later = np.flatnonzero(ranks >= max(distance, from_rank))
        laters.append(later)
        earliers.append(later - distance)
    beyond = np.flatnonzero(ranks >= max(WINDOW + 1, from_rank))
    first = starts[beyond]
    pseudo_random = mix64(ids[beyond]) % (ranks[beyond] - WINDOW).astype(np.uint64)
    laters += [beyond, beyond]
    earliers += [first, first + pseudo_random.astype(np.int64)]
    later, earlier = np.concatenate(laters), np.concatenate(earliers)
    compared = np.minimum(ranks, WINDOW)[ranks >= from_rank].sum() + len(beyond)
    possible = ranks[ranks >= from_rank].sum()
    return Proposed(np.stack([ids[later], ids[earlier]], axis=1), max(0, int(possible - compared)))


class UnitBands(NamedTuple):
    """The bands of a unit's documents, for comparison with other units and within."""

    entries: np.ndarray
    """`ENTRY` [entries]: the bands to compare with those of other units, and with each other."""
    proposed: Proposed
    """The pairs of other documents of the unit."""


def divide_bands(unit: int, bands: np.ndarray, documents: np.ndarray) -> UnitBands:
    """Divides the bands of a unit's documents, so that a band that many documents have costs other units little.

    Args:
        unit: The number of the unit.
        bands: uint64 [documents, bands].
        documents: int64 [documents]: their numbers, ascending.
    """
    entries = np.empty(bands.size, ENTRY)
    entries["hash"] = bands.ravel()
    entries["document"] = np.repeat(documents, bands.shape[1])
    entries = entries[np.lexsort((entries["document"], entries["hash"]))]
    starts = group_starts(entries["hash"])
    ids = document_ids(unit, entries["document"])
    in_group = np.arange(len(entries)) - starts
    return UnitBands(entries[in_group < MOST_SENT], propose(ids, starts, MOST_SENT))


def propose_in_bucket(units: np.ndarray, entries: np.ndarray) -> Proposed:
    """Proposes pairs of documents with an equal band.

    Args:
        units: int64 [entries]: the unit of each entry.
        entries: `ENTRY` [entries], in any order.
    """
    ids = np.uint64(1 << 32) * units.astype(np.uint64) + entries["document"].astype(np.uint64)
    order = np.lexsort((ids, entries["hash"]))
    return propose(ids[order], group_starts(entries["hash"][order]))
