"""A seeded sample of a corpus' documents, taken with Beam and read back by the launcher in the corpus' order.

A document is taken where a hash of its place is below the share wanted: a function of the input, the options and the
seed alone, whatever the runner and its bundles. The sample goes through a few files, never through memory as a whole.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import apache_beam as beam
import numpy as np
from apache_beam.metrics import Metrics

from beam_pipeline import filesystem
from beam_pipeline.errors import DataError
from beam_pipeline.hashing import place_hashes
from beam_pipeline.input_options import InputConfig
from beam_pipeline.progress import Address, Reporter
from beam_pipeline.sources import describe, read_unit
from beam_pipeline.sources.units import WorkUnit, read_plan

# A sample is spread over at most so many files, however many work units there are.
_FILES = 64

# Where sizes say little (a compressed file's, say) the sample may come out larger than wanted; up to here it is left.
_MOST_ABOVE = 1.25

_SAMPLE_FILE = re.compile(r"/sample-\d+\.bin$")
_COUNTS = struct.Struct("<QQ")  # documents, bytes of their texts


@dataclass(frozen=True)
class SampleJob:
    """What the workers know.

    Attributes:
      folder: where the sample's files go.
      plan_path: the work units, a JSON line each.
      num_units: how many there are.
      share: of the documents to take, above 0; from 1 on all are.
      seed: decides which.
      read_options: how records become documents.
      skip_bad: whether records that are no documents are passed over.
      progress: where workers report to, in local runs.
    """

    folder: str
    plan_path: str
    num_units: int
    share: float
    seed: int
    read_options: InputConfig
    skip_bad: bool
    progress: Address | None


def build(pipeline: beam.Pipeline, job: SampleJob) -> None:
    """Adds the sampling's steps: after the run, `Sample(job.folder, …)` reads what they wrote."""
    _ = (
        pipeline
        | "PlanPath" >> beam.Create([job.plan_path])
        | "ReadPlan" >> beam.FlatMap(read_plan)
        | "SpreadUnits" >> beam.Reshuffle()
        | "Sample" >> beam.ParDo(SampleUnit(job))
        | "GroupByFile" >> beam.GroupByKey()
        | "WriteSample" >> beam.Map(write_file, job.folder)
    )


def _below(hashes: np.ndarray, share: float) -> np.ndarray:
    return np.ones(len(hashes), bool) if share >= 1 else hashes < np.uint64(int(share * 2**64))


class SampleUnit(beam.DoFn):
    """A work unit → (file, (unit, its sampled documents as bytes)); nothing where none were taken."""

    def __init__(self, job: SampleJob):
        self._job = job

    def setup(self) -> None:
        self._reporter = Reporter(self._job.progress)
        self._documents = Metrics.counter("train-tokenizer", "documents")
        self._bad = Metrics.counter("train-tokenizer", "bad_records")

    def process(self, unit: WorkUnit) -> Iterator[tuple[int, tuple[int, bytes]]]:
        job = self._job
        hashes: list[np.ndarray] = []
        texts: list[bytes] = []
        for batch in read_unit(unit, job.read_options):
            if batch.bad and not job.skip_bad:
                raise DataError(describe(unit, batch.bad[0]))
            self._bad.inc(len(batch.bad))
            self._documents.inc(len(batch.texts))
            hashed = place_hashes("sample", job.seed, batch.name, batch.places)  # the same for repeats
            chosen = np.flatnonzero(_below(hashed, job.share))
            hashes.append(hashed[chosen])
            # A lone surrogate (a jsonl may hold one) is no valid UTF-8: nothing can be learnt from it.
            texts += (batch.texts[index].encode(errors="ignore") for index in chosen.tolist())
        if texts:
            yield (
                unit.index * _FILES // job.num_units,
                (unit.index, to_bytes(np.concatenate(hashes), texts)),
            )
        self._reporter.add("sample", unit.bytes)


def to_bytes(hashes: np.ndarray, texts: list[bytes]) -> bytes:
    """A unit's sampled documents, as `Sample` reads them: counts, hashes, sizes, and the texts."""
    sizes = np.fromiter(map(len, texts), np.uint64, len(texts))
    head = _COUNTS.pack(len(texts), int(sizes.sum()))
    return b"".join([head, hashes.tobytes(), sizes.tobytes(), *texts])


def write_file(element: tuple[int, Iterable[tuple[int, bytes]]], folder: str) -> None:
    """Writes the documents of neighbouring units, in their order, as one file."""
    number, units = element
    filesystem.write_bytes(_path(folder, number), b"".join(data for _, data in sorted(units)))


def _path(folder: str, number: int) -> str:
    return filesystem.join(folder, f"sample-{number:02d}.bin")


class Sample:
    """The documents that a run has sampled.

    Args:
      folder: the run's.
      share: of the documents, as the run took them.
      most_bytes: about the size wanted; a sample much larger is thinned by the same hash.

    Attributes:
      documents, bytes: how much it holds.
    """

    def __init__(self, folder: str, share: float, most_bytes: int):
        self._paths = [path for path in filesystem.list_folder(folder) if _SAMPLE_FILE.search(path)]
        self._share = 1.0
        self.documents, self.bytes = self._measure()
        if self.bytes > _MOST_ABOVE * most_bytes:
            self._share = min(share, 1.0) * most_bytes / self.bytes
            self.documents, self.bytes = self._measure()

    def _measure(self) -> tuple[int, int]:
        sizes = [(chosen.size, int(lengths[chosen].sum())) for chosen, lengths, _ in self._blocks()]
        return sum(size for size, _ in sizes), sum(size for _, size in sizes)

    def texts(self) -> Iterator[str]:
        """The documents, in the order of their units and places."""
        for chosen, lengths, data in self._blocks():
            ends = np.cumsum(lengths)
            for start, end in zip((ends - lengths)[chosen].tolist(), ends[chosen].tolist(), strict=True):
                yield str(data[start:end], "utf-8")

    def _blocks(self) -> Iterator[tuple[np.ndarray, np.ndarray, memoryview]]:
        """Of each unit: the numbers of the documents kept, all documents' sizes (int64), and their bytes."""
        for path in self._paths:
            data = memoryview(filesystem.read_bytes(path))
            position = 0
            while position < len(data):
                count, size = _COUNTS.unpack_from(data, position)
                position += _COUNTS.size
                hashes = np.frombuffer(data, np.uint64, count, position)
                lengths = np.frombuffer(data, np.uint64, count, position + 8 * count).astype(np.int64)
                position += 16 * count
                yield np.flatnonzero(_below(hashes, self._share)), lengths, data[position : position + size]
                position += size
