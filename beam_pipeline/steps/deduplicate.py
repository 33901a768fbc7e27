"""Exact duplicates: of documents with the same text, the first (by unit, then by place in it) stays.

Documents are known by a 128-bit hash of their text. A unit drops its own repeats at once and sends the other hashes, in
arrays, to buckets by the hash; a bucket finds what is in several units and sends each later unit the numbers of the
documents that it is to leave out. So a text that occurs millions of times is one entry a unit, whatever the text is.

10 TB of text in documents of 1 kB: 298,000 units of 33,500 documents, 4096 buckets. A unit sends each bucket 8 entries
of 20 bytes: 1.2 billion elements, 200 GB in all. A bucket gets 2.4 million entries, which took 0.9 s:
an hour of one core for all. Buckets of more than 4 million entries take several passes, of 0.5 GB each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam.metrics import Metrics
from apache_beam.pvalue import TaggedOutput

from beam_pipeline.dataset.finished_units import hashes_path, identity_of
from beam_pipeline.dataset.sections import (
    Section,
    create_sections,
    read_if_intact,
    read_section,
)
from beam_pipeline.hashing import text_hashes
from beam_pipeline.job import Job
from beam_pipeline.sources import read_unit
from beam_pipeline.sources.units import WorkUnit

HASHES, DUPLICATES = "hashes", "duplicates"
NO_DUPLICATES = np.empty(0, np.int64)

# Each unit sends an element to each bucket: with a bucket for 64 MiB of input there are some hundred thousand hashes in
# one, up to 4096 buckets; from then on they grow.
_BYTES_PER_BUCKET = 64 << 20
_MOST_BUCKETS = 4096
_ENTRIES_PER_PASS = 1 << 22

# A document by its hash: "low" and "high" are its halves, "document" its number in its unit.
_SEEN = np.dtype([("high", "<u8"), ("low", "<u8"), ("document", "<u4")])

# What a unit sends to a bucket: (the unit's number, its `_SEEN` entries there as bytes).
Seen = tuple[int, bytes]


def num_buckets(input_bytes: int) -> int:
    """How many buckets the hashes of so much input are spread over."""
    return max(1, min(_MOST_BUCKETS, input_bytes // _BYTES_PER_BUCKET))


def first_of_each(hashes: np.ndarray) -> np.ndarray:
    """bool [documents]: whether no earlier document has the same hash (uint64 [documents, 2])."""
    order = np.lexsort((hashes[:, 1], hashes[:, 0]))  # stable: equal hashes stay in their order
    ordered = hashes[order]
    first = np.ones(len(hashes), bool)
    first[order[1:]] = (ordered[1:] != ordered[:-1]).any(axis=1)
    return first


def bucket_entries(hashes: np.ndarray, wanted: np.ndarray, buckets: int) -> Iterator[tuple[int, bytes]]:
    """The wanted documents (bool [documents]) by bucket: (bucket, `_SEEN` entries as bytes)."""
    seen = np.empty(int(wanted.sum()), _SEEN)
    seen["high"], seen["low"] = hashes[wanted].T
    seen["document"] = np.flatnonzero(wanted)
    bucket = seen["high"] % np.uint64(buckets)
    for part in _runs(bucket):
        yield int(bucket[part[0]]), seen[part].tobytes()


def _runs(keys: np.ndarray) -> list[np.ndarray]:
    """For each key, in ascending order: the indices where it is."""
    order = np.argsort(keys, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(keys[order])) + 1) if len(keys) else []


def find_duplicates(
    seen: Iterable[Seen], entries_per_pass: int = _ENTRIES_PER_PASS
) -> Iterator[tuple[int, bytes]]:
    """What is in several units: (unit, its documents that an earlier unit has, int64 as bytes).

    Args:
      seen: what the units sent to one bucket, in any order; a unit has no hash twice. Iterated over several times.
      entries_per_pass: about how many entries are in memory at a time.
    """
    total = sum(len(data) for _, data in seen) // _SEEN.itemsize
    passes = -(-total // entries_per_pass)
    for number in range(passes):
        units, entries = [], []
        for unit, data in seen:
            part = np.frombuffer(data, _SEEN)
            if passes > 1:
                part = part[part["low"] % np.uint64(passes) == number]
            units.append(np.full(len(part), unit, np.int64))
            entries.append(part)
        unit, entry = np.concatenate(units), np.concatenate(entries)
        order = np.lexsort((unit, entry["low"], entry["high"]))
        unit, entry = unit[order], entry[order]
        again = (entry["high"][1:] == entry["high"][:-1]) & (entry["low"][1:] == entry["low"][:-1])
        unit, document = unit[1:][again], entry["document"][1:][again].astype(np.int64)
        for part in _runs(unit):
            yield int(unit[part[0]]), document[part].tobytes()


class HashDocuments(beam.DoFn):
    """A unit → the hashes of its distinct documents, by bucket; and the numbers of its documents that repeat earlier
    ones of its own. The hashes are kept in a file: an attempt that finds it intact does not read the text again."""

    def __init__(self, job: Job, buckets: int):
        self._job = job
        self._buckets = buckets

    def setup(self) -> None:
        self._duplicates = Metrics.counter("prepare", "duplicates_found")

    def process(self, unit: WorkUnit) -> Iterator[TaggedOutput]:
        hashes = self._hashes(unit)
        first = first_of_each(hashes)
        repeats = np.flatnonzero(~first).astype(np.int64)
        if len(repeats):
            self._duplicates.inc(len(repeats))
            yield TaggedOutput(DUPLICATES, (unit.index, repeats.tobytes()))
        for bucket, entries in bucket_entries(hashes, first, self._buckets):
            # Repeats that a mixture asks for are no duplicates of each other.
            yield TaggedOutput(HASHES, ((unit.repeat, bucket), (unit.index, entries)))

    def _hashes(self, unit: WorkUnit) -> np.ndarray:
        """uint64 [documents, 2]: of all documents of the unit, in their order."""
        path = hashes_path(self._job.staging, unit.index)
        identity = identity_of(self._job.fingerprint, unit)
        kept = _kept_hashes(path, identity)
        if kept is not None:
            return kept
        batches = [text_hashes(batch.texts) for batch in read_unit(unit, self._job.read_options)]
        hashes = np.concatenate([np.empty((0, 2), np.uint64), *batches])
        with create_sections(path) as sections:
            sections.end({**identity, "hashes": sections.add(hashes.tobytes())})
        return hashes


def _kept_hashes(path: str, identity: dict) -> np.ndarray | None:
    """The hashes that an earlier attempt kept, if every byte of their file is as it was written; else None."""
    data = read_if_intact(
        path, identity, lambda file, index: read_section(file, Section(*index["hashes"]), path)
    )
    return None if data is None else np.frombuffer(data, np.uint64).reshape(-1, 2)


class FindDuplicates(beam.DoFn):
    """A bucket's hashes → (unit, the numbers of its documents that are in earlier units, too)."""

    def setup(self) -> None:
        self._duplicates = Metrics.counter("prepare", "duplicates_found")

    def process(self, element: tuple[tuple[int, int], Iterable[Seen]]) -> Iterator[tuple[int, bytes]]:
        for unit, documents in find_duplicates(element[1]):
            self._duplicates.inc(len(documents) // 8)
            yield unit, documents


def join_duplicates(
    element: tuple[int, dict[str, Iterable[Any]]],
) -> tuple[WorkUnit, np.ndarray]:
    """A unit's number, its `WorkUnit` and what was found for it → the unit and the documents that it leaves out.

    Returns:
      The unit, and int64, ascending, the numbers of its documents that are duplicates of others.
    """
    (unit,) = element[1]["unit"]
    found = [np.frombuffer(documents, np.int64) for documents in element[1]["duplicates"]]
    return unit, np.sort(np.concatenate([NO_DUPLICATES, *found]))
