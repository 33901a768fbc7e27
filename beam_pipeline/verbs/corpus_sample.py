"""A seeded sample of a corpus: Beam samples the documents, and the launcher reads them in the order of the corpus.

A document is in the sample if a hash of its place is below the share. This depends only on the input, the options and
the seed, not on the runner or its bundles. The sample is stored in a few files, and is never in memory as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_pipeline.options.input_options import InputConfig
from beam_pipeline.sources.reading import describe, read_unit
from beam_pipeline.sources.units import WorkUnit, read_plan
from beam_pipeline.support import filesystem
from beam_pipeline.support import pipelines as beam
from beam_pipeline.support.errors import DataError
from beam_pipeline.support.hashing import place_hashes
from beam_pipeline.support.pipelines import Metrics
from beam_pipeline.support.progress import Address, Reporter, UnitProgress

# The largest number of files of a sample, for any number of work units.
_MAX_FILES = 64

# The sizes of some files, such as compressed ones, are only estimates, so the sample may be larger than requested. It
# is thinned if it exceeds the requested size by more than this factor.
_MAX_EXCESS = 1.25

_SAMPLE_FILE = re.compile(r"/sample-\d+\.arrow$")
_SCHEMA = pa.schema([("hash", pa.uint64()), ("text", pa.large_string())])


@dataclass(frozen=True)
class SampleJob:
    """The configuration of a sampling run, for its workers."""

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


def _is_sampled(hashes: np.ndarray, share: float) -> np.ndarray:
    return np.ones(len(hashes), bool) if share >= 1 else hashes < np.uint64(int(share * 2**64))


class SampleUnit(beam.DoFn):
    """A work unit → (file, (unit, its sampled documents)); nothing if none are sampled."""

    def __init__(self, job: SampleJob):
        self._job = job

    def setup(self) -> None:
        self._reporter = Reporter(self._job.progress)
        self._documents = Metrics.counter("train-tokenizer", "documents")
        self._bad_records = Metrics.counter("train-tokenizer", "bad_records")

    def process(self, unit: WorkUnit) -> Iterator[tuple[int, tuple[int, pa.RecordBatch]]]:
        job = self._job
        hashes: list[np.ndarray] = []
        texts: list[bytes] = []
        progress = UnitProgress(self._reporter, "sample", unit.bytes)
        for batch in read_unit(unit, job.read_options, progress.advance):
            if batch.bad_records and not job.skip_bad:
                raise DataError(describe(unit, batch.bad_records[0]))
            self._bad_records.inc(len(batch.bad_records))
            self._documents.inc(len(batch.texts))
            hashed = place_hashes("sample", job.seed, batch.name, batch.places)  # equal for repeats of --mix
            indices = np.flatnonzero(_is_sampled(hashed, job.share))
            hashes.append(hashed[indices])
            # UTF-8 cannot encode lone surrogates, which jsonl may contain, and a tokenizer cannot learn from them.
            texts += (batch.texts[index].encode(errors="ignore") for index in indices.tolist())
        if texts:
            sampled = pa.record_batch([np.concatenate(hashes), texts], schema=_SCHEMA)
            yield unit.index * _MAX_FILES // job.num_units, (unit.index, sampled)
        progress.finish()


def write_file(element: tuple[int, Iterable[tuple[int, pa.RecordBatch]]], folder: str) -> None:
    """Writes the documents of neighbouring units, in order, to one file."""
    file_number, units = element
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, _SCHEMA) as writer:
        for _, sampled in sorted(units, key=itemgetter(0)):
            writer.write_batch(sampled)
    path = filesystem.join(folder, f"sample-{file_number:02d}.arrow")
    filesystem.write_bytes(path, stream.getvalue().to_pybytes())


class Sample:
    """The documents that a run has sampled. `documents` and `bytes` are its size.

    Args:
        folder: The run's folder.
        share: The share of the documents that the run sampled.
        target_bytes: The requested size. A sample that is much larger is thinned by the same hash.
    """

    def __init__(self, folder: str, share: float, target_bytes: int):
        self._paths = [path for path in filesystem.list_folder(folder) if _SAMPLE_FILE.search(path)]
        self._share = 1.0
        self.documents, self.bytes = self._measure()
        if self.bytes > _MAX_EXCESS * target_bytes:
            self._share = min(share, 1.0) * target_bytes / self.bytes
            self.documents, self.bytes = self._measure()

    def _measure(self) -> tuple[int, int]:
        """Returns the number of documents and of bytes."""
        sizes = [(len(texts), pc.sum(pc.binary_length(texts)).as_py() or 0) for texts in self._units()]
        return sum(size for size, _ in sizes), sum(size for _, size in sizes)

    def texts(self) -> Iterator[str]:
        """Yields the documents, in the order of their units and places."""
        for texts in self._units():
            yield from texts.to_pylist()

    def _units(self) -> Iterator[pa.Array]:
        """Yields the sampled documents of each unit."""
        for path in self._paths:
            for unit in pa.ipc.open_stream(filesystem.read_bytes(path)):
                yield unit["text"].filter(_is_sampled(unit["hash"].to_numpy(), self._share))
