"""Near-deduplication: of documents whose sets of shingles are similar, only one is kept, the first by default.

    units ─► sketch ─► equal sets, by key ─► bands, by hash ─► candidate pairs ─► exact similarity ─► clusters
                                                                   (near_clusters.py) ─► removals, by unit

1. Each unit computes the sketches of its documents: a key of the set of shingles, bands of MinHashes, and the set,
   which goes to a file. Documents with equal sets are found by key, as in exact deduplication, and take no further
   part.
2. The bands of the others are distributed to buckets by hash. Of a unit's documents with the same band, at most four
   are sent; the others are compared within the unit.
3. A bucket proposes pairs of documents with an equal band (`curation.candidates`).
4. The unit of a pair's later document computes the exact similarity (`near_similarity`).
5. Pairs at or above the threshold are the edges of a graph, whose components are the clusters (`near_clusters`).
   With `--dedup_keep`, each unit sends its best document of a cluster to the cluster's partition, which chooses.

The similarity of a pair is always computed, never estimated, so no document is removed without one that is similar. A
pair that no band proposes is missed (see `curation.minhash` for how often).

Costs for 10 TB of text in documents of 1 kB with 170 shingles: 298,000 units of 33,500 documents, 16,384 buckets and
4096 partitions.

- Sketches: 25 MB/s of a core, 110 hours. Their files have 1.6 bytes per byte of text: 16 TB, written and read once.
- Keys: 1.2 billion elements, 200 GB, as in exact deduplication.
- Bands: a unit sends 18 · 33,500 entries of 12 bytes, 37 to each bucket: 4.9 billion elements, 2.2 TB. A bucket has 11
  million entries, which take three passes of 0.1 GB each and 5 s: 23 hours for all.
- Pairs: if each of a third of the documents resembles two others, 10 bands propose each pair of 16 bytes: 1.1 TB.
- Sets: each is sent once to each unit that compares it: 7 billion · 1.4 kB, 9.4 TB. Comparing takes 0.5 µs: one hour.
- Clusters: in each of 10 rounds, at most 48 bytes for each of 3 billion edges: 1.5 TB in total.

That is 15 TB of shuffle and 150 vCPU-hours, without those of reading the input twice and of moving the bytes. The
largest groups are a bucket (130 MB), the pairs of a unit, and the links of a partition; a step has only a part of each
in memory, except a unit's own pairs and sets (50 MB). A document that resembles many is a hot key nowhere: a unit sends
it once to each other, and a round reads the links of a vertex in chunks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from beam_pipeline.curation.candidates import (
    ENTRY,
    Proposed,
    divide_bands,
    document_ids,
    propose_in_bucket,
    units_of,
)
from beam_pipeline.curation.minhash import Bands, band_hashes, hash_functions
from beam_pipeline.curation.removals import Removals
from beam_pipeline.curation.shingles import ShingleSize, shingle_sets
from beam_pipeline.dataset.finished_units import identity_of
from beam_pipeline.dataset.sketches import (
    Sketches,
    SketchKeys,
    kept_sketches,
    read_bands,
    read_scores,
    sketches_path,
    write_sketches,
)
from beam_pipeline.dataset.text_checksums import TextChecksums
from beam_pipeline.sources.units import WorkUnit
from beam_pipeline.steps.curate import Curation, compared_texts, curated_batches, index_of_texts
from beam_pipeline.steps.deduplicate import (
    DUPLICATE,
    bucket_entries,
    entries_in_passes,
    first_occurrences,
)
from beam_pipeline.steps.job import Job
from beam_pipeline.steps.preference import Preference
from beam_pipeline.support import pipelines as beam
from beam_pipeline.support.grouping import indices_by_key
from beam_pipeline.support.pipelines import Metrics, TaggedOutput

HASHES, BANDS, PAIRS, EQUALS, DECIDED = "hashes", "bands", "pairs", "equals", "decided"

_BYTES_PER_BUCKET = 32 << 20
_MAX_BUCKETS = 1 << 14
_ENTRIES_PER_PASS = 1 << 22

REMOVED = np.dtype([("document", "<u4"), ("kept", "<u8"), ("like", "<u8"), ("similarity", "<f8")])
"""A document to remove: its number in the unit, the ids of the document that is kept and of the one that it was
compared with, and the similarity with the latter."""


def num_band_buckets(input_bytes: int) -> int:
    """Returns the number of buckets of bands for an input of this size."""
    return max(1, min(_MAX_BUCKETS, input_bytes // _BYTES_PER_BUCKET))


def removed_entries(documents: np.ndarray, kept: np.ndarray, like: np.ndarray, similarity: Any) -> np.ndarray:
    """Returns `REMOVED` entries with these fields."""
    entries = np.empty(len(documents), REMOVED)
    entries["document"], entries["kept"], entries["like"] = documents, kept, like
    entries["similarity"] = similarity
    return entries


class SketchDocuments(beam.DoFn):
    """A unit → the keys of its distinct sets by bucket, and its documents whose set an earlier one of the unit has.

    The sketches are stored in a file. Another attempt that finds this file intact does not read the text again.
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
        sketched = self._keys(unit, removals)
        numbers, keys, scores = sketched.numbers, sketched.keys, sketched.scores
        firsts = first_occurrences(keys, scores)
        is_first = firsts == np.arange(len(firsts))
        repeats = np.flatnonzero(~is_first)
        if len(repeats):
            self._duplicates.inc(len(repeats))
            first_ids = document_ids(unit.index, numbers[firsts[repeats]])
            entries = removed_entries(numbers[repeats], first_ids, first_ids, 1.0)
            yield TaggedOutput(DECIDED, (unit.index, entries.tobytes()))
        sent_scores = None if scores is None else scores[is_first]
        for bucket, entries in bucket_entries(keys[is_first], numbers[is_first], self._buckets, sent_scores):
            # The repeats that --mix requests are not duplicates of each other.
            yield TaggedOutput(HASHES, ((unit.repeat, bucket), (unit.index, entries)))

    def _keys(self, unit: WorkUnit, removals: bytes) -> SketchKeys:
        """Returns the keys of the unit's documents. Documents that are already removed have none."""
        job = self._job
        path = sketches_path(job.staging, unit.index)
        identity = identity_of(job.fingerprint, unit, removals)
        kept = kept_sketches(path, identity)
        if kept is not None:
            return kept
        checksums = TextChecksums()

        def finish() -> dict[str, Any]:
            index = index_of_texts(job, unit, path, identity, checksums)
            job.check_lock()  # the file appears next
            return index

        bands = Bands.from_options(job.config.near_bands, job.config.near_threshold)
        sketches = self._sketches(unit, Removals.from_bytes(removals), bands, checksums)
        return write_sketches(path, sketches, bands.bands, finish)

    def _sketches(
        self, unit: WorkUnit, removals: Removals, bands: Bands, checksums: TextChecksums
    ) -> Iterator[Sketches]:
        config = self._job.config
        size = ShingleSize.from_option(config.near_shingle)
        functions = hash_functions(config.seed, bands.bands * bands.rows)
        for curated in curated_batches(unit, self._curation, checksums, removals=removals):
            sets = shingle_sets(compared_texts(curated.batch, config), size)
            scores = self._preference.scores(unit, curated)
            yield Sketches(curated.numbers, sets.keys(), band_hashes(sets, bands, functions), sets, scores)


class SendBands(beam.DoFn):
    """A unit and its documents whose sets earlier units have → the bands of the others, and candidate pairs of its own.

    The equal documents go to the unit of the document that each equals, which may itself be removed.
    """

    def __init__(self, job: Job, buckets: int):
        self._job = job
        self._buckets = buckets

    def setup(self) -> None:
        self._skipped = Metrics.counter("prepare", "near_pairs_skipped")

    def process(self, element: tuple[int, dict[str, Iterable[Any]]]) -> Iterator[TaggedOutput]:
        index, joined = element
        ((unit, _),) = joined["unit"]
        equal = concatenate(joined["equal"], DUPLICATE)
        for part in indices_by_key(equal["kept_unit"]):
            yield TaggedOutput(EQUALS, (int(equal["kept_unit"][part[0]]), (index, equal[part].tobytes())))
        path = sketches_path(self._job.staging, index)
        numbers, keys, bands = read_bands(path)
        is_first = first_occurrences(keys, read_scores(path)[1]) == np.arange(len(keys))
        compared = is_first & ~np.isin(numbers, equal["document"])
        entries, proposed = divide_bands(index, bands[compared], numbers[compared])
        self._skipped.inc(proposed.skipped)
        yield from (TaggedOutput(PAIRS, pairs) for pairs in _pairs_by_unit(proposed))
        bucket = entries["hash"] % np.uint64(self._buckets)
        for part in indices_by_key(bucket):
            data = entries[part].tobytes()
            yield TaggedOutput(BANDS, ((unit.repeat, int(bucket[part[0]])), (index, data)))


class ProposePairs(beam.DoFn):
    """A bucket's bands → (unit, candidate pairs whose later document is in it; ids, uint64 [pairs, 2] as bytes)."""

    def __init__(self, entries_per_pass: int = _ENTRIES_PER_PASS):
        self._entries_per_pass = entries_per_pass

    def setup(self) -> None:
        self._skipped = Metrics.counter("prepare", "near_pairs_skipped")

    def process(
        self, element: tuple[tuple[int, int], Iterable[tuple[int, bytes]]]
    ) -> Iterator[tuple[int, bytes]]:
        passes = entries_in_passes(
            element[1],
            ENTRY,
            lambda entries: entries["hash"] >> np.uint64(32),  # the lower bits determine the bucket
            entries_per_pass=self._entries_per_pass,
        )
        for units, entries in passes:
            proposed = propose_in_bucket(units, entries)
            self._skipped.inc(proposed.skipped)
            yield from _pairs_by_unit(proposed)


def _pairs_by_unit(proposed: Proposed) -> Iterator[tuple[int, bytes]]:
    """Yields (unit, the pairs whose later document is in the unit, as bytes)."""
    units = units_of(proposed.pairs[:, 0])
    for part in indices_by_key(units):
        yield int(units[part[0]]), proposed.pairs[part].tobytes()


def concatenate(parts: Iterable[bytes], dtype: Any) -> np.ndarray:
    """Returns the entries of several arrays of bytes."""
    return np.frombuffer(b"".join(parts), dtype)
