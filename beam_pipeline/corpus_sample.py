"""A seeded sample of a corpus: Beam samples the documents, and the launcher reads them in the order of the corpus.

A document is in the sample if a hash of its place is below the share. This depends only on the input, the options and
the seed, not on the runner or its bundles. The sample is stored in a few files, and is never in memory as a whole.
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

# The largest number of files of a sample, however many work units there are.
_FILES = 64

# The sizes of some files, such as compressed ones, are only estimates, so the sample may be larger than requested. It
# is thinned if it exceeds the requested size by more than this factor.
_MAX_EXCESS = 1.25

_SAMPLE_FILE = re.compile(r"/sample-\d+\.bin$")
_COUNTS = struct.Struct("<QQ")  # documents, bytes of their texts


@dataclass(frozen=True)
class SampleJob:
    """The configuration of a sampling run, as workers get it."""

    folder: str
    """Folder for the sample's files."""
    plan_path: str
    """File of the work units, one JSON line each."""
    num_units: int
    share: float
    """Share of the documents to sample, above 0. With 1 or more, all documents are sampled."""
    seed: int
    """Determines which documents are sampled."""
    read_options: InputConfig
    """Options that determine how records become documents."""
    skip_bad: bool
    """Whether to skip records that are not documents, instead of failing."""
    progress: Address | None
    """Address to which workers report their progress; None if the run is not local."""


def build(pipeline: beam.Pipeline, job: SampleJob) -> None:
    """Adds the steps of the sampling. After the run, `Sample(job.folder, …)` reads their files."""
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
    """A work unit → (file, (unit, its sampled documents as bytes)); nothing if none are sampled."""

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
            hashed = place_hashes("sample", job.seed, batch.name, batch.places)  # equal for repeats of --mix
            chosen = np.flatnonzero(_below(hashed, job.share))
            hashes.append(hashed[chosen])
            # UTF-8 cannot encode lone surrogates, which jsonl may contain, and a tokenizer cannot learn from them.
            texts += (batch.texts[index].encode(errors="ignore") for index in chosen.tolist())
        if texts:
            yield (
                unit.index * _FILES // job.num_units,
                (unit.index, to_bytes(np.concatenate(hashes), texts)),
            )
        self._reporter.add("sample", unit.bytes)


def to_bytes(hashes: np.ndarray, texts: list[bytes]) -> bytes:
    """Encodes a unit's sampled documents in the format that `Sample` reads: counts, hashes, sizes, texts."""
    sizes = np.fromiter(map(len, texts), np.uint64, len(texts))
    head = _COUNTS.pack(len(texts), int(sizes.sum()))
    return b"".join([head, hashes.tobytes(), sizes.tobytes(), *texts])


def write_file(element: tuple[int, Iterable[tuple[int, bytes]]], folder: str) -> None:
    """Writes the documents of neighbouring units, in order, to one file."""
    number, units = element
    filesystem.write_bytes(_path(folder, number), b"".join(data for _, data in sorted(units)))


def _path(folder: str, number: int) -> str:
    return filesystem.join(folder, f"sample-{number:02d}.bin")


class Sample:
    """The documents that a run has sampled. `documents` and `bytes` are its size.

    Args:
        folder: The run's folder.
        share: The share of the documents that the run sampled.
        wanted_bytes: The requested size. A sample that is much larger is thinned by the same hash.
    """

    def __init__(self, folder: str, share: float, wanted_bytes: int):
        self._paths = [path for path in filesystem.list_folder(folder) if _SAMPLE_FILE.search(path)]
        self._share = 1.0
        self.documents, self.bytes = self._measure()
        if self.bytes > _MAX_EXCESS * wanted_bytes:
            self._share = min(share, 1.0) * wanted_bytes / self.bytes
            self.documents, self.bytes = self._measure()

    def _measure(self) -> tuple[int, int]:
        """Returns the number of documents and of bytes."""
        sizes = [(chosen.size, int(lengths[chosen].sum())) for chosen, lengths, _ in self._blocks()]
        return sum(size for size, _ in sizes), sum(size for _, size in sizes)

    def texts(self) -> Iterator[str]:
        """Yields the documents, in the order of their units and places."""
        for chosen, lengths, data in self._blocks():
            ends = np.cumsum(lengths)
            for start, end in zip((ends - lengths)[chosen].tolist(), ends[chosen].tolist(), strict=True):
                yield str(data[start:end], "utf-8")

    def _blocks(self) -> Iterator[tuple[np.ndarray, np.ndarray, memoryview]]:
        """Yields for each unit: numbers of the sampled documents, sizes of all its documents (int64), their bytes."""
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
