"""Exact deduplication: keeps only one document with a text, the first in the order of units and of places within a
unit, or the one with the highest score of `--dedup_keep`.

Documents are identified by a 128-bit hash of their text. Each unit finds the repeats within itself and distributes the
other hashes, as arrays, to buckets by hash. A bucket finds the hashes that several units have, and sends each later
unit the numbers of its duplicate documents. A text that occurs millions of times thus costs one entry per unit.

Costs for 10 TB of text in documents of 1 kB: 298,000 units of 33,500 documents, and 4096 buckets. A unit sends 8
entries of 20 bytes to each bucket: 1.2 billion elements, 200 GB in total. A bucket gets 2.4 million entries, which
took 0.9 s: one hour of one core for all buckets. Buckets of more than 4 million entries take several passes of 0.5 GB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO

import numpy as np

from beam_pipeline.curation.removals import EXACT, Removals
from beam_pipeline.dataset.finished_units import hashes_path, identity_of
from beam_pipeline.dataset.sections import Section, create_sections, read_if_intact, read_section
from beam_pipeline.dataset.text_checksums import TextChecksums
from beam_pipeline.sources.units import WorkUnit
from beam_pipeline.steps.curate import Curation, curated_batches, index_of_texts
from beam_pipeline.steps.job import Job
from beam_pipeline.steps.preference import Preference
from beam_pipeline.support import pipelines as beam
from beam_pipeline.support.grouping import indices_by_key, run_starts
from beam_pipeline.support.hashing import text_hashes
from beam_pipeline.support.pipelines import Metrics, TaggedOutput

HASHES, DUPLICATES, REMOVALS = "hashes", "duplicates", "removals"

# Each unit sends an element to each bucket. With one bucket per 64 MiB of input, a bucket has some hundred thousand
# hashes. There are at most 4096 buckets; for larger inputs, the buckets grow.
_BYTES_PER_BUCKET = 64 << 20
_MAX_BUCKETS = 4096
_ENTRIES_PER_PASS = 1 << 22

# A document's hash, as its two halves, and the document's number in its unit.
_ENTRY = np.dtype([("high", "<u8"), ("low", "<u8"), ("document", "<u4")])
_SCORED_ENTRY = np.dtype([*_ENTRY.descr, ("score", "<f8")])

# A document that repeats another: its number, and the unit and number of the document that is kept.
DUPLICATE = np.dtype([("document", "<u4"), ("kept_unit", "<i8"), ("kept_document", "<u4")])

UnitEntries = tuple[int, bytes]
"""The entries that a unit sends to a bucket: (the unit's number, `_ENTRY` entries as bytes)."""


def num_buckets(input_bytes: int) -> int:
    """Returns the number of buckets for an input of this size."""
    return max(1, min(_MAX_BUCKETS, input_bytes // _BYTES_PER_BUCKET))


def first_occurrences(hashes: np.ndarray, scores: np.ndarray | None = None) -> np.ndarray:
    """Returns the index of the first document with the same hash as each, which is its own if it is the first.

    With scores, the first is the one with the highest score, and the first of several with the same score.

    >>> first_occurrences(np.array([[1, 2], [3, 4], [1, 2], [1, 5]], np.uint64))
    array([0, 1, 0, 3])

    Args:
        hashes: uint64 [documents, 2].
        scores: float64 [documents].

    Returns:
        int64 [documents].
    """
    keys = (hashes[:, 1], hashes[:, 0])
    order = np.lexsort(
        keys if scores is None else (-scores, *keys)
    )  # a stable sort: equal ones keep their order
    ordered = hashes[order]
    differs = (ordered[1:] != ordered[:-1]).any(axis=1)
    firsts = np.empty(len(hashes), np.int64)
    firsts[order] = order[run_starts(differs, len(hashes))]
    return firsts


def bucket_entries(
    hashes: np.ndarray, documents: np.ndarray, buckets: int, scores: np.ndarray | None = None
) -> Iterator[tuple[int, bytes]]:
    """Yields (bucket, `_ENTRY` or `_SCORED_ENTRY` entries as bytes) of documents with these hashes and numbers."""
    entries = np.empty(len(documents), _ENTRY if scores is None else _SCORED_ENTRY)
    if scores is not None:
        entries["score"] = scores
    entries["high"], entries["low"] = hashes.T
    entries["document"] = documents
    bucket = entries["high"] % np.uint64(buckets)
    for indices in indices_by_key(bucket):
        yield int(bucket[indices[0]]), entries[indices].tobytes()


def entries_in_passes(
    unit_entries: Iterable[UnitEntries],
    dtype: np.dtype,
    key: Callable[[np.ndarray], np.ndarray],
    *,
    entries_per_pass: int = _ENTRIES_PER_PASS,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the entries of a bucket in parts that fit in memory; those with equal keys are in one part.

    Args:
        unit_entries: The entries that the units sent, in any order. The iterable is read several times.
        dtype: Of an entry.
        key: Returns a number of each entry, uint64 [entries], other than the one that determined the bucket.
        entries_per_pass: Approximate number of entries in memory at a time.

    Yields:
        The number of each entry's unit, int64 [entries], and the entries.
    """
    total = sum(len(data) for _, data in unit_entries) // dtype.itemsize
    passes = -(-total // entries_per_pass)
    for pass_number in range(passes):
        units, parts = [], []
        for unit, data in unit_entries:
            part = np.frombuffer(data, dtype)
            if passes > 1:
                part = part[key(part) % np.uint64(passes) == pass_number]
            units.append(np.full(len(part), unit, np.int64))
            parts.append(part)
        yield np.concatenate(units), np.concatenate(parts)


def find_duplicates(
    unit_entries: Iterable[UnitEntries], entries_per_pass: int = _ENTRIES_PER_PASS, *, scored: bool = False
) -> Iterator[tuple[int, bytes]]:
    """Yields (unit, its documents that an earlier unit also has; `DUPLICATE` entries as bytes).

    With scores, documents that another unit also has with a higher score, or that an earlier one has with the same.

    Args:
        unit_entries: The entries that the units sent to one bucket, in any order. No unit has a hash twice. The
            iterable is read several times.
        entries_per_pass: Approximate number of entries in memory at a time.
        scored: Whether the entries have scores.
    """
    dtype = _SCORED_ENTRY if scored else _ENTRY
    passes = entries_in_passes(
        unit_entries, dtype, lambda entries: entries["low"], entries_per_pass=entries_per_pass
    )
    for unit, entry in passes:
        preferred = (unit, -entry["score"]) if scored else (unit,)
        order = np.lexsort((*preferred, entry["low"], entry["high"]))
        unit, entry = unit[order], entry[order]
        differs = (entry["high"][1:] != entry["high"][:-1]) | (entry["low"][1:] != entry["low"][:-1])
        repeated = np.flatnonzero(~differs) + 1
        kept = run_starts(differs, len(unit))[repeated]
        duplicates = _duplicates(entry["document"][repeated], unit[kept], entry["document"][kept])
        unit = unit[repeated]
        for part in indices_by_key(unit):
            yield int(unit[part[0]]), duplicates[part].tobytes()


def _duplicates(
    documents: np.ndarray, kept_units: np.ndarray | int, kept_documents: np.ndarray
) -> np.ndarray:
    """Returns `DUPLICATE` entries with these fields."""
    duplicates = np.empty(len(documents), DUPLICATE)
    duplicates["document"], duplicates["kept_unit"] = documents, kept_units
    duplicates["kept_document"] = kept_documents
    return duplicates


class HashDocuments(beam.DoFn):
    """A unit → its distinct hashes by bucket, and its documents that repeat earlier ones of the unit.

    The hashes are also stored in a file. Another attempt that finds this file intact does not read the text again.
    """

    def __init__(self, job: Job, buckets: int):
        self._job = job
        self._buckets = buckets

    def setup(self) -> None:
        self._duplicates = Metrics.counter("prepare", "duplicates_found")
        self._curation = Curation(self._job.config)
        self._preference = Preference(self._job.config)

    def process(self, element: tuple[WorkUnit, bytes]) -> Iterator[TaggedOutput]:
        """Processes one unit, given its removals that are already decided (`Removals.to_bytes`)."""
        unit, removals = element
        hashes, numbers, scores = self._hashes(unit, removals)
        firsts = first_occurrences(hashes, scores)
        is_first = firsts == np.arange(len(firsts))
        repeats = np.flatnonzero(~is_first)
        if len(repeats):
            self._duplicates.inc(len(repeats))
            duplicates = _duplicates(numbers[repeats], unit.index, numbers[firsts[repeats]])
            yield TaggedOutput(DUPLICATES, (unit.index, duplicates.tobytes()))
        sent_scores = None if scores is None else scores[is_first]
        for bucket, entries in bucket_entries(
            hashes[is_first], numbers[is_first], self._buckets, sent_scores
        ):
            # The repeats that --mix requests are not duplicates of each other.
            yield TaggedOutput(HASHES, ((unit.repeat, bucket), (unit.index, entries)))

    def _hashes(self, unit: WorkUnit, removals: bytes) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Returns the hashes, numbers and scores of the unit's documents: uint64 [documents, 2], int64, float64.

        Documents that are already removed are not among them.
        """
        path = hashes_path(self._job.staging, unit.index)
        identity = identity_of(self._job.fingerprint, unit, removals)
        stored = _kept_hashes(path, identity)
        if stored is not None:
            return stored
        checksums = TextChecksums()
        parts = [
            (text_hashes(curated.batch.texts), curated.numbers, self._preference.scores(unit, curated))
            for curated in curated_batches(
                unit, self._curation, checksums, removals=Removals.from_bytes(removals)
            )
        ]
        index = index_of_texts(self._job, unit, path, identity, checksums)
        hashes = np.concatenate([np.empty((0, 2), np.uint64), *(part for part, _, _ in parts)])
        numbers = np.concatenate([np.empty(0, np.int64), *(part for _, part, _ in parts)])
        scores = None
        if self._job.config.prefers:
            scores = np.concatenate([np.empty(0), *(part for _, _, part in parts)])
        with create_sections(path) as sections:
            places = {"hashes": sections.add(hashes.tobytes()), "numbers": sections.add(numbers.tobytes())}
            if scores is not None:
                places["scores"] = sections.add(scores.tobytes())
            sections.end({**index, **places})
            self._job.check_lock()  # the file appears at the end of this block
        return hashes, numbers, scores


def _kept_hashes(path: str, identity: dict) -> tuple[np.ndarray, np.ndarray, np.ndarray | None] | None:
    """Returns what an earlier attempt stored, as `HashDocuments._hashes`, or None if there is no intact file of it."""

    def read(
        file: BinaryIO, index: dict[str, Any]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None] | None:
        if "numbers" not in index:  # an earlier version wrote it
            return None
        hashes, numbers = (read_section(file, Section(*index[name]), path) for name in ("hashes", "numbers"))
        scores = None
        if "scores" in index:
            scores = np.frombuffer(read_section(file, Section(*index["scores"]), path))
        return np.frombuffer(hashes, np.uint64).reshape(-1, 2), np.frombuffer(numbers, np.int64), scores

    return read_if_intact(path, identity, read)


class FindDuplicates(beam.DoFn):
    """A bucket's hashes → (unit, its documents that other units also have, of which one is kept)."""

    def __init__(self, *, scored: bool):
        self._scored = scored

    def setup(self) -> None:
        self._duplicates = Metrics.counter("prepare", "duplicates_found")

    def process(self, element: tuple[tuple[int, int], Iterable[UnitEntries]]) -> Iterator[tuple[int, bytes]]:
        for unit, duplicates in find_duplicates(element[1], scored=self._scored):
            self._duplicates.inc(len(duplicates) // DUPLICATE.itemsize)
            yield unit, duplicates


def removals_of(duplicates: Iterable[bytes], unit: int | None = None) -> Removals:
    """Returns the removals of a unit's duplicates, given as `DUPLICATE` entries, in any order.

    A document of the unit that another one repeats may itself be removed; the evidence then has the one that is kept.
    """
    entries = np.concatenate(
        [np.empty(0, DUPLICATE), *(np.frombuffer(part, DUPLICATE) for part in duplicates)]
    )
    entries = np.sort(entries, order="document")
    repeats = np.flatnonzero(
        (entries["kept_unit"] == unit) if unit is not None else np.zeros(len(entries), bool)
    )
    places = np.searchsorted(entries["document"], entries["kept_document"][repeats])
    places = np.minimum(places, len(entries) - 1)
    is_removed = entries["document"][places] == entries["kept_document"][repeats]
    for name in ("kept_unit", "kept_document"):
        entries[name][repeats[is_removed]] = entries[name][places[is_removed]]
    kept = zip(entries["kept_unit"].tolist(), entries["kept_document"].tolist(), strict=True)
    return Removals.of_rule(
        EXACT,
        entries["document"].astype(np.int64),
        np.ones(len(entries)),
        [{"kept": place} for place in kept],
    )


def join_removals(element: tuple[int, dict[str, Iterable[Any]]]) -> tuple[WorkUnit, bytes]:
    """Joins a unit and its earlier removals with its duplicates, and with the removals of steps that compare documents.

    Returns:
        The unit, and its removals as bytes.
    """
    joined = element[1]
    ((unit, earlier),) = joined["unit"]
    duplicates = removals_of(joined.get(DUPLICATES, ()), unit.index)
    others = map(Removals.from_bytes, (earlier, *joined.get(REMOVALS, ())))
    return unit, Removals.concat([duplicates, *others]).to_bytes()
