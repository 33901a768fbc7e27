"""Exact deduplication: keeps only the first document with a text, in the order of units and of places within a unit.

Documents are identified by a 128-bit hash of their text. Each unit finds the repeats within itself and distributes the
other hashes, as arrays, to buckets by hash. A bucket finds the hashes that several units have, and sends each later
unit the numbers of its duplicate documents. A text that occurs millions of times thus costs one entry per unit.

Costs for 10 TB of text in documents of 1 kB: 298,000 units of 33,500 documents, and 4096 buckets. A unit sends 8
entries of 20 bytes to each bucket: 1.2 billion elements, 200 GB in total. A bucket gets 2.4 million entries, which
took 0.9 s: one hour of one core for all buckets. Buckets of more than 4 million entries take several passes of 0.5 GB.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam.metrics import Metrics
from apache_beam.pvalue import TaggedOutput

from beam_pipeline.dataset.finished_units import NO_DUPLICATES, hashes_path, identity_of
from beam_pipeline.dataset.sections import Section, create_sections, read_if_intact, read_section
from beam_pipeline.dataset.text_checksums import KEY, TextChecksums
from beam_pipeline.sources.reading import read_unit
from beam_pipeline.sources.units import WorkUnit
from beam_pipeline.steps.job import Job
from beam_pipeline.support.hashing import text_hashes

HASHES, DUPLICATES = "hashes", "duplicates"

# Each unit sends an element to each bucket. With one bucket per 64 MiB of input, a bucket has some hundred thousand
# hashes. There are at most 4096 buckets; for larger inputs, the buckets grow.
_BYTES_PER_BUCKET = 64 << 20
_MAX_BUCKETS = 4096
_ENTRIES_PER_PASS = 1 << 22

# A document's hash, as its two halves, and the document's number in its unit.
_ENTRY = np.dtype([("high", "<u8"), ("low", "<u8"), ("document", "<u4")])

UnitEntries = tuple[int, bytes]
"""The entries that a unit sends to a bucket: (the unit's number, `_ENTRY` entries as bytes)."""


def num_buckets(input_bytes: int) -> int:
    """Returns the number of buckets for an input of this size."""
    return max(1, min(_MAX_BUCKETS, input_bytes // _BYTES_PER_BUCKET))


def first_occurrences(hashes: np.ndarray) -> np.ndarray:
    """Determines whether a document is the first with its hash.

    >>> first_occurrences(np.array([[1, 2], [3, 4], [1, 2], [1, 5]], np.uint64))
    array([ True,  True, False,  True])

    Args:
        hashes: uint64 [documents, 2].

    Returns:
        bool [documents].
    """
    order = np.lexsort((hashes[:, 1], hashes[:, 0]))  # a stable sort: equal hashes keep their order
    ordered = hashes[order]
    is_first = np.ones(len(hashes), bool)
    is_first[order[1:]] = (ordered[1:] != ordered[:-1]).any(axis=1)
    return is_first


def bucket_entries(hashes: np.ndarray, selected: np.ndarray, buckets: int) -> Iterator[tuple[int, bytes]]:
    """Yields (bucket, `_ENTRY` entries as bytes) of the documents for which `selected`, bool [documents], is true."""
    entries = np.empty(int(selected.sum()), _ENTRY)
    entries["high"], entries["low"] = hashes[selected].T
    entries["document"] = np.flatnonzero(selected)
    bucket = entries["high"] % np.uint64(buckets)
    for indices in _indices_by_key(bucket):
        yield int(bucket[indices[0]]), entries[indices].tobytes()


def _indices_by_key(keys: np.ndarray) -> list[np.ndarray]:
    """Returns the indices of each distinct key, in ascending order of the keys.

    >>> _indices_by_key(np.array([7, 3, 7]))
    [array([1]), array([0, 2])]
    """
    order = np.argsort(keys, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(keys[order])) + 1) if len(keys) else []


def find_duplicates(
    unit_entries: Iterable[UnitEntries], entries_per_pass: int = _ENTRIES_PER_PASS
) -> Iterator[tuple[int, bytes]]:
    """Yields (unit, numbers of its documents that an earlier unit also has; int64 as bytes).

    Args:
        unit_entries: The entries that the units sent to one bucket, in any order. No unit has a hash twice. The
            iterable is read several times.
        entries_per_pass: Approximate number of entries in memory at a time.
    """
    total = sum(len(data) for _, data in unit_entries) // _ENTRY.itemsize
    passes = -(-total // entries_per_pass)
    for pass_number in range(passes):
        units, entries = [], []
        for unit, data in unit_entries:
            part = np.frombuffer(data, _ENTRY)
            if passes > 1:
                part = part[part["low"] % np.uint64(passes) == pass_number]
            units.append(np.full(len(part), unit, np.int64))
            entries.append(part)
        unit, entry = np.concatenate(units), np.concatenate(entries)
        order = np.lexsort((unit, entry["low"], entry["high"]))
        unit, entry = unit[order], entry[order]
        repeated = (entry["high"][1:] == entry["high"][:-1]) & (entry["low"][1:] == entry["low"][:-1])
        unit, document = unit[1:][repeated], entry["document"][1:][repeated].astype(np.int64)
        for part in _indices_by_key(unit):
            yield int(unit[part[0]]), document[part].tobytes()


class HashDocuments(beam.DoFn):
    """A unit → its distinct hashes by bucket, and the numbers of its documents that repeat earlier ones of the unit.

    The hashes are also stored in a file. Another attempt that finds this file intact does not read the text again.
    """

    def __init__(self, job: Job, buckets: int):
        self._job = job
        self._buckets = buckets

    def setup(self) -> None:
        self._duplicates = Metrics.counter("prepare", "duplicates_found")

    def process(self, unit: WorkUnit) -> Iterator[TaggedOutput]:
        hashes = self._hashes(unit)
        is_first = first_occurrences(hashes)
        repeats = np.flatnonzero(~is_first).astype(np.int64)
        if len(repeats):
            self._duplicates.inc(len(repeats))
            yield TaggedOutput(DUPLICATES, (unit.index, repeats.tobytes()))
        for bucket, entries in bucket_entries(hashes, is_first, self._buckets):
            # The repeats that --mix requests are not duplicates of each other.
            yield TaggedOutput(HASHES, ((unit.repeat, bucket), (unit.index, entries)))

    def _hashes(self, unit: WorkUnit) -> np.ndarray:
        """Returns uint64 [documents, 2], the hashes of the unit's documents in their order."""
        path = hashes_path(self._job.staging, unit.index)
        identity = identity_of(self._job.fingerprint, unit)
        stored = _kept_hashes(path, identity)
        if stored is not None:
            return stored
        checksums = TextChecksums()
        batches = [
            text_hashes(batch.texts) for batch in checksums.add_each(read_unit(unit, self._job.config.input))
        ]
        run_identity = {"fingerprint": self._job.fingerprint, "run": self._job.run}
        checksums.check(unit, path, **run_identity)
        hashes = np.concatenate([np.empty((0, 2), np.uint64), *batches])
        with create_sections(path) as sections:
            sections.end(
                {**identity, **run_identity, KEY: checksums.by_name, "hashes": sections.add(hashes.tobytes())}
            )
            self._job.check_lock()  # the file appears at the end of this block
        return hashes


def _kept_hashes(path: str, identity: dict) -> np.ndarray | None:
    """Returns the hashes that an earlier attempt stored, or None if there is no intact file of them."""
    data = read_if_intact(
        path, identity, lambda file, index: read_section(file, Section(*index["hashes"]), path)
    )
    return None if data is None else np.frombuffer(data, np.uint64).reshape(-1, 2)


class FindDuplicates(beam.DoFn):
    """A bucket's hashes → (unit, the numbers of its documents that earlier units also have)."""

    def setup(self) -> None:
        self._duplicates = Metrics.counter("prepare", "duplicates_found")

    def process(self, element: tuple[tuple[int, int], Iterable[UnitEntries]]) -> Iterator[tuple[int, bytes]]:
        for unit, documents in find_duplicates(element[1]):
            self._duplicates.inc(len(documents) // 8)
            yield unit, documents


def join_duplicates(element: tuple[int, dict[str, Iterable[Any]]]) -> tuple[WorkUnit, np.ndarray]:
    """Joins a unit with the duplicates that were found in it.

    Returns:
        The unit, and the numbers of its duplicate documents: int64, ascending.
    """
    (unit,) = element[1]["unit"]
    duplicates = [np.frombuffer(documents, np.int64) for documents in element[1]["duplicates"]]
    return unit, np.sort(np.concatenate([NO_DUPLICATES, *duplicates]))
