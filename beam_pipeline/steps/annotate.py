"""Measures work units: a parquet file of attributes for each, and a record of all."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from beam_pipeline.curation.attributes import Measurer, join_tables
from beam_pipeline.dataset.attribute_files import (
    FORMAT,
    describe_schema,
    encode_unit,
    identity_of_file,
    unit_file,
)
from beam_pipeline.dataset.finished_units import identity_of
from beam_pipeline.options.annotate_options import AnnotateConfig
from beam_pipeline.options.curation_options import ATTRIBUTES_RECORD
from beam_pipeline.sources.reading import read_unit
from beam_pipeline.sources.units import DocumentBatch, WorkUnit, read_plan
from beam_pipeline.steps.job import OutputJob
from beam_pipeline.support import filesystem
from beam_pipeline.support import pipelines as beam
from beam_pipeline.support.pipelines import AsIter, Metrics
from beam_pipeline.support.progress import Reporter, UnitProgress
from beam_pipeline.support.texts import Texts


@dataclass(frozen=True)
class AnnotateJob(OutputJob):
    """A run of `annotate`."""

    config: AnnotateConfig
    plan: str
    """The `plan_digest` of the work units."""
    num_units: int

    def publish(self, path: str, data: bytes) -> None:
        """Writes a file atomically, if this run still holds the lock."""
        with filesystem.create_whole(path, self.temporary_path(path.rpartition("/")[2])) as file:
            file.write(data)
            self.check_lock()


@dataclass(frozen=True)
class AnnotatedUnit:
    """A unit whose file is written."""

    unit: int
    documents: int
    crc: int
    """The CRC-32C of the file."""
    schema: bytes


def build(pipeline: beam.Pipeline, job: AnnotateJob) -> None:
    """Adds the steps of `annotate` to a pipeline."""
    units = (
        pipeline
        | "PlanPath" >> beam.Create([job.plan_path])
        | "ReadPlan" >> beam.FlatMap(read_plan)
        | "SpreadUnits" >> beam.Reshuffle()
        | "Annotate" >> beam.ParDo(AnnotateUnit(job))
    )
    _ = (
        pipeline
        | "Once" >> beam.Create([None])
        | "Commit" >> beam.ParDo(CommitAttributes(job), AsIter(units))
    )


class AnnotateUnit(beam.DoFn):
    """A work unit → its finished file. A file that an earlier attempt wrote is kept."""

    def __init__(self, job: AnnotateJob):
        self._job = job

    def setup(self) -> None:
        self._measurer = Measurer(self._job.config.curation)
        self._reporter = Reporter(self._job.progress)
        self._documents = Metrics.counter("annotate", "documents")
        self._units_kept = Metrics.counter("annotate", "units_kept")

    def process(self, unit: WorkUnit) -> Iterator[AnnotatedUnit]:
        path = unit_file(self._job.output, unit.index)
        identity = identity_of(self._job.fingerprint, unit)
        progress = UnitProgress(self._reporter, "annotate", unit.bytes)
        if identity_of_file(path) == identity:
            self._units_kept.inc()
        else:
            self._job.publish(path, encode_unit(self._table(unit, progress), identity))
        data = filesystem.read_bytes(path)
        metadata = pq.read_metadata(pa.BufferReader(data))
        schema = metadata.schema.to_arrow_schema().remove_metadata()
        self._documents.inc(metadata.num_rows)
        progress.finish()
        yield AnnotatedUnit(
            unit.index, metadata.num_rows, google_crc32c.value(data), schema.serialize().to_pybytes()
        )

    def _table(self, unit: WorkUnit, progress: UnitProgress) -> pa.Table:
        config, tables, first = self._job.config, [], 0
        for batch in read_unit(unit, config.input, progress.advance, config.keep_columns):
            if batch.texts or not tables:
                tables.append(self._measurer.table(batch, first))
            first += len(batch.texts)
        if not tables:  # the unit is within a record that begins before it
            empty = DocumentBatch("", Texts.of([]), np.empty(0, np.int64))
            tables.append(self._measurer.table(empty, 0))
        return join_tables(tables)


class CommitAttributes(beam.DoFn):
    """Writes the record of finished attributes, and deletes the staging folder."""

    def __init__(self, job: AnnotateJob):
        self._job = job

    def process(self, _: None, units: Iterable[AnnotatedUnit]) -> None:
        """Commits. Raises AssertionError if a unit is missing or occurs twice."""
        job = self._job
        ordered = sorted(units, key=lambda unit: unit.unit)
        if [unit.unit for unit in ordered] != list(range(job.num_units)):
            raise AssertionError(f"annotated {len(ordered)} units of {job.num_units}")
        sums = json.dumps([[unit.unit, unit.documents, unit.crc] for unit in ordered])
        record = {
            "format": FORMAT,
            "version": 1,
            "fingerprint": job.fingerprint,
            "plan": job.plan,
            "config": job.config.identity(),
            "units": job.num_units,
            "documents": sum(unit.documents for unit in ordered),
            "sha256": hashlib.sha256(sums.encode()).hexdigest(),
            **describe_schema(pa.ipc.read_schema(pa.py_buffer(unit.schema)) for unit in ordered),
        }
        path = filesystem.join(job.output, ATTRIBUTES_RECORD)
        job.publish(path, (json.dumps(record, indent=2, sort_keys=True) + "\n").encode())
        filesystem.make_durable([*(unit_file(job.output, unit.unit) for unit in ordered), path])
