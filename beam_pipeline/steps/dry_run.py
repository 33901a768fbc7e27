"""The steps of `--dry_run`: lists the documents that rules remove, and makes no dataset of the others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from beam_pipeline.curation.removals import Removals
from beam_pipeline.dataset.bad_records import Excluded
from beam_pipeline.dataset.finished_units import hashes_path, matches_path, paragraphs_path
from beam_pipeline.dataset.removed_documents import DRY_RUN_PATH
from beam_pipeline.dataset.sketches import sketches_path
from beam_pipeline.dataset.text_checksums import TextChecksums
from beam_pipeline.sources.reading import describe
from beam_pipeline.sources.units import WorkUnit
from beam_pipeline.steps.commit import finish
from beam_pipeline.steps.curate import Curation, RemovedDocuments, kept_documents
from beam_pipeline.steps.job import Job
from beam_pipeline.support import filesystem
from beam_pipeline.support import pipelines as beam
from beam_pipeline.support.errors import DataError
from beam_pipeline.support.progress import Reporter, UnitProgress
from tokenmill_reader.format.json_text import json_bytes


class ListRemoved(beam.DoFn):
    """A unit and its removals as bytes → the counts of its records. Lists the removed ones in a file."""

    def __init__(self, job: Job):
        self._job = job

    def setup(self) -> None:
        self._curation = Curation(self._job.config)
        self._reporter = Reporter(self._job.progress)

    def process(self, element: tuple[WorkUnit, bytes]) -> Iterator[Excluded]:
        unit, removals = element
        job, excluded, checksums = self._job, Excluded(), TextChecksums()
        removed = RemovedDocuments(job.config.curation.keep_columns)
        progress = UnitProgress(self._reporter, "read", unit.bytes)
        for batch in kept_documents(
            unit,
            self._curation,
            Removals.from_bytes(removals),
            removed=removed,
            excluded=excluded,
            checksums=checksums,
            advance=progress.advance,
        ):
            excluded.bad_records += len(batch.bad_records)
            for record in batch.bad_records if job.config.on_bad_record == "fail" else ():
                raise DataError(f"{describe(unit, record)}; --on_bad_record skip leaves such records out")
        for earlier_pass in (matches_path, paragraphs_path, hashes_path, sketches_path):
            checksums.check(unit, earlier_pass(job.staging, unit.index), fingerprint=job.fingerprint)
        excluded.add_removals(removed.removals())
        job.check_lock()
        removed.write(job, unit)
        progress.finish()
        yield excluded


class FinishDryRun(beam.DoFn):
    """Writes the counts, once, after all documents are listed, and ends the run."""

    def __init__(self, job: Job):
        self._job = job

    def process(self, _: None, excluded: Iterable[Excluded], report: Iterable[None] = ()) -> None:
        job = self._job
        counts = sum(excluded, Excluded())
        job.check_lock()
        content = {"excluded": counts.to_json(), "removed": counts.removed, "edited": counts.edited}
        job.write(filesystem.join(job.output, DRY_RUN_PATH), json_bytes(content))
        finish(job)
