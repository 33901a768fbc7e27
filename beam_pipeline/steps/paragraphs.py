"""Removes paragraphs that many documents have from all but the first of them, in the order of units and documents.

    units ─► split and hash, in a file of each unit ─► count documents, by hash ─► removals of each unit

Each unit distributes its different paragraphs to buckets by hash: once each, with the number of its documents that have
it and the first of these. So a paragraph of a million documents costs one entry per unit. A bucket adds up the
documents, and sends the units the numbers of the paragraphs that too many have. Documents that are removed already take
no part, and later steps see the texts without these paragraphs.

Costs for 10 TB of text in paragraphs of 300 bytes: 298,000 units of 112,000 paragraphs, and 4096 buckets. A unit sends
27 entries of 28 bytes to each bucket: 1.2 billion elements, 0.9 TB in total. A bucket gets 8 million entries, in two
passes of 0.5 GB, which take 5 s: 6 hours for all. Reading, splitting and hashing takes 18 MB/s of a core, 154
hours. The files of the units have 0.3 bytes per byte of text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import numpy as np

from beam_pipeline.curation.paragraphs import DOCUMENT, HIT, OCCURRENCE, Paragraphs, Splitter, decide
from beam_pipeline.curation.removals import Removals
from beam_pipeline.dataset.finished_units import identity_of, paragraphs_path
from beam_pipeline.dataset.sections import (
    Section,
    create_sections,
    open_sections,
    read_if_intact,
    read_index,
    read_section,
)
from beam_pipeline.dataset.text_checksums import TextChecksums
from beam_pipeline.sources.units import WorkUnit
from beam_pipeline.steps.curate import Curation, curated_batches, index_of_texts
from beam_pipeline.steps.deduplicate import UnitEntries, entries_in_passes, first_occurrences, num_buckets
from beam_pipeline.steps.job import Job
from beam_pipeline.support import pipelines as beam
from beam_pipeline.support.grouping import indices_by_key
from beam_pipeline.support.pipelines import Metrics, PCollection

_ENTRIES_PER_PASS = 1 << 22

# A paragraph's hash, as its two halves, its number in its unit, and the unit's number of documents with it and the
# first of them.
_ENTRY = np.dtype(
    [("high", "<u8"), ("low", "<u8"), ("paragraph", "<u4"), ("documents", "<u4"), ("first", "<u4")]
)
_DTYPES = {"occurrences": OCCURRENCE, "documents": DOCUMENT, "entries": _ENTRY}


class RemoveParagraphs(beam.PTransform):
    """Units and their earlier removals → units with these and those of repeated paragraphs (`Removals.to_bytes`)."""

    def __init__(self, job: Job):
        self._job = job

    def expand(self, units: PCollection[tuple[WorkUnit, bytes]]) -> PCollection[tuple[WorkUnit, bytes]]:
        job = self._job
        hits = (
            units
            | "HashParagraphs" >> beam.ParDo(HashParagraphs(job, num_buckets(job.input_bytes)))
            | "GroupParagraphs" >> beam.GroupByKey()
            | "CountDocuments" >> beam.ParDo(FindRepeated(job.config.paragraph_copies))
        )
        numbered = units | "NumberUnits" >> beam.Map(lambda element: (element[0].index, element))
        return (
            {"unit": numbered, "hits": hits}
            | "JoinParagraphs" >> beam.CoGroupByKey()
            | "DecideParagraphs" >> beam.ParDo(DecideParagraphs(job))
        )


class HashParagraphs(beam.DoFn):
    """A unit → its different paragraphs by bucket.

    The paragraphs are stored in a file. Another attempt that finds this file intact does not read the text again.
    """

    def __init__(self, job: Job, buckets: int):
        self._job = job
        self._buckets = buckets

    def setup(self) -> None:
        self._curation = Curation(self._job.config)

    def process(self, element: tuple[WorkUnit, bytes]) -> Iterator[tuple[tuple[int, int], UnitEntries]]:
        """Processes one unit, given its removals that are already decided (`Removals.to_bytes`)."""
        unit, removals = element
        entries = self._entries(unit, removals)
        bucket = entries["high"] % np.uint64(self._buckets)
        for indices in indices_by_key(bucket):
            # The repeats that --mix requests are not compared with each other.
            key = unit.repeat, int(bucket[indices[0]])
            yield key, (unit.index, entries[indices].tobytes())

    def _entries(self, unit: WorkUnit, removals: bytes) -> np.ndarray:
        """Returns the unit's different paragraphs, `_ENTRY` [paragraphs]."""
        job = self._job
        path = paragraphs_path(job.staging, unit.index)
        identity = identity_of(job.fingerprint, unit, removals)

        def read(file: BinaryIO, index: dict[str, Any]) -> np.ndarray:
            return {name: _array(file, index, name, path) for name in _DTYPES}["entries"]

        stored = read_if_intact(path, identity, read)
        if stored is not None:
            return stored
        checksums = TextChecksums()
        of_blocks = job.config.paragraph_end == "blank_line"
        splitter = Splitter(job.config.paragraph_min_words, of_blocks=of_blocks)
        parts = [Paragraphs(np.empty(0, OCCURRENCE), np.empty((0, 2), np.uint64), np.empty(0, DOCUMENT))]
        parts += [
            splitter.split(curated.batch.texts, curated.numbers)
            for curated in curated_batches(
                unit, self._curation, checksums, removals=Removals.from_bytes(removals)
            )
        ]
        occurrences, hashes, documents = map(np.concatenate, zip(*parts, strict=True))
        entries, occurrences["paragraph"] = different(hashes, occurrences["document"])
        index = index_of_texts(job, unit, path, identity, checksums)
        arrays = {"occurrences": occurrences, "documents": documents, "entries": entries}
        with create_sections(path) as sections:
            sections.end({**index, **{name: sections.add(data.tobytes()) for name, data in arrays.items()}})
            job.check_lock()  # the file appears at the end of this block
        return entries


def different(hashes: np.ndarray, documents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Counts the documents of a unit with each of its paragraphs.

    Args:
        hashes: uint64 [paragraphs, 2].
        documents: uint32 [paragraphs], the number of the document of each, ascending.

    Returns:
        The different paragraphs, `_ENTRY`, in the order of their first occurrences, and the number of each paragraph
        among them, int64 [paragraphs].
    """
    firsts = first_occurrences(hashes)
    is_first = firsts == np.arange(len(firsts))
    numbers = (np.cumsum(is_first) - 1)[firsts]
    pairs = np.unique(numbers << 32 | documents) >> 32  # each document counts once
    entries = np.empty(int(is_first.sum()), _ENTRY)
    entries["high"], entries["low"] = hashes[is_first].T
    entries["paragraph"] = np.arange(len(entries))
    entries["documents"] = np.bincount(pairs, minlength=len(entries))
    entries["first"] = documents[is_first]
    return entries, numbers


def _array(file: BinaryIO, index: dict[str, Any], name: str, path: str) -> np.ndarray:
    return np.frombuffer(read_section(file, Section(*index[name]), path), _DTYPES[name])


class FindRepeated(beam.DoFn):
    """A bucket's paragraphs → (unit, those of its paragraphs that more than `most` documents have; `HIT` as bytes)."""

    def __init__(self, most: int, entries_per_pass: int = _ENTRIES_PER_PASS):
        self._most = most
        self._entries_per_pass = entries_per_pass

    def setup(self) -> None:
        self._repeated = Metrics.counter("prepare", "paragraphs_repeated")

    def process(self, element: tuple[tuple[int, int], Iterable[UnitEntries]]) -> Iterator[tuple[int, bytes]]:
        passes = entries_in_passes(
            element[1], _ENTRY, lambda entries: entries["low"], entries_per_pass=self._entries_per_pass
        )
        for units, entries in passes:
            order = np.lexsort((units, entries["low"], entries["high"]))
            units, entries = units[order], entries[order]
            differs = (entries["high"][1:] != entries["high"][:-1]) | (
                entries["low"][1:] != entries["low"][:-1]
            )
            starts = np.flatnonzero(np.append(np.ones(min(1, len(entries)), bool), differs))
            documents = np.add.reduceat(entries["documents"].astype(np.uint64), starts)
            sizes = np.diff(np.append(starts, len(entries)))
            repeated = np.repeat(documents > self._most, sizes)
            self._repeated.inc(int((documents > self._most).sum()))
            hits = np.empty(int(repeated.sum()), HIT)
            hits["paragraph"] = entries["paragraph"][repeated]
            first = np.repeat(starts, sizes)[repeated]
            hits["documents"] = np.repeat(documents, sizes)[repeated]
            hits["kept_unit"], hits["kept_document"] = units[first], entries["first"][first]
            units = units[repeated]
            for part in indices_by_key(units):
                yield int(units[part[0]]), hits[part].tobytes()


class DecideParagraphs(beam.DoFn):
    """A unit, its earlier removals and its repeated paragraphs → the unit and all its removals as bytes."""

    def __init__(self, job: Job):
        self._job = job

    def process(self, element: tuple[int, dict[str, Iterable[Any]]]) -> Iterator[tuple[WorkUnit, bytes]]:
        index, joined = element
        ((unit, earlier),) = joined["unit"]
        hits = np.frombuffer(b"".join(joined["hits"]), HIT)
        if not len(hits):
            yield unit, earlier
            return
        path = paragraphs_path(self._job.staging, index)
        with open_sections(path) as file:
            sections = read_index(file, path)
            occurrences, documents = (
                _array(file, sections, name, path) for name in ("occurrences", "documents")
            )
        removals = decide(occurrences, documents, hits, index)
        yield unit, Removals.concat([Removals.from_bytes(earlier), removals]).to_bytes()
