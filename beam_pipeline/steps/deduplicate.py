"""Exact duplicates: of documents with the same text, the first (by unit, then by place in it) stays.

Documents are known by a 128-bit hash of their text. Units send the hashes, in arrays, to buckets by the hash; a
bucket finds what stands in it twice and sends each unit the numbers of the documents that it is to leave out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import apache_beam as beam
import numpy as np
from apache_beam.metrics import Metrics

from beam_pipeline.job import Job
from beam_pipeline.rows.unit_rows import text_hashes
from beam_pipeline.sources import read_unit
from beam_pipeline.sources.units import WorkUnit

# A bucket's hashes must fit into a worker's memory, and each unit sends an element to each bucket: with a bucket for
# 64 MiB of input there are some hundred thousand hashes in one, up to 4096 buckets; from then on they grow.
_BYTES_PER_BUCKET = 64 << 20
_MOST_BUCKETS = 4096

_SEEN = np.dtype([("high", np.uint64), ("low", np.uint64), ("unit", np.int64), ("document", np.int64)])


def num_buckets(input_bytes: int) -> int:
    """How many buckets the hashes of so much input are spread over."""
    return max(1, min(_MOST_BUCKETS, input_bytes // _BYTES_PER_BUCKET))


class HashDocuments(beam.DoFn):
    """A unit → (bucket, its documents' hashes in that bucket)."""

    def __init__(self, job: Job, buckets: int):
        self._job = job
        self._buckets = buckets

    def process(self, element: tuple[int, str]) -> Iterator[tuple[tuple[int, int], bytes]]:
        unit = WorkUnit.from_json(element[1])
        hashes = [text_hashes(batch.texts) for batch in read_unit(unit, self._job.read_options)]
        seen = np.empty(sum(map(len, hashes)), _SEEN)
        joined = np.concatenate([np.empty((0, 2), np.uint64), *hashes])
        seen["high"], seen["low"] = joined[:, 0], joined[:, 1]
        seen["unit"], seen["document"] = unit.index, np.arange(len(seen))
        bucket = seen["high"] % np.uint64(self._buckets)
        for number in np.unique(bucket).tolist():
            # Repeats that a mixture asks for are no duplicates of each other.
            yield (unit.repeat, number), seen[bucket == number].tobytes()


class FindDuplicates(beam.DoFn):
    """A bucket's hashes → (unit, the numbers of its documents that stand earlier, too)."""

    def setup(self) -> None:
        self._duplicates = Metrics.counter("prepare", "duplicates_found")

    def process(self, element: tuple[tuple[int, int], Iterable[bytes]]) -> Iterator[tuple[int, bytes]]:
        seen = np.concatenate([np.frombuffer(part, _SEEN) for part in element[1]])
        seen = seen[np.lexsort((seen["document"], seen["unit"], seen["low"], seen["high"]))]
        again = (seen["high"][1:] == seen["high"][:-1]) & (seen["low"][1:] == seen["low"][:-1])
        later = seen[1:][again]
        self._duplicates.inc(len(later))
        for unit in np.unique(later["unit"]).tolist():
            yield unit, later["document"][later["unit"] == unit].tobytes()
