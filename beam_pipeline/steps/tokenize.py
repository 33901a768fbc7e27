"""Tokenizes and packs a work unit: writes its rows to a file, and emits its tails, counts and statistics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from beam_pipeline.conversations.tokenizer import AnyTokenizer, make_tokenizer
from beam_pipeline.curation.removals import Removals
from beam_pipeline.dataset.bad_records import Excluded, write_bad_records
from beam_pipeline.dataset.finished_units import (
    FinishedUnit,
    create_unit,
    find_unit,
    hashes_path,
    identity_of,
    matches_path,
    paragraphs_path,
    unit_path,
)
from beam_pipeline.dataset.sketches import sketches_path
from beam_pipeline.dataset.statistics import SplitStatistics
from beam_pipeline.dataset.text_checksums import TextChecksums
from beam_pipeline.rows.packing import Packer
from beam_pipeline.rows.split_chooser import SplitChooser
from beam_pipeline.sources.reading import describe, describe_place
from beam_pipeline.sources.units import BadRecord, WorkUnit
from beam_pipeline.steps.ahead import ahead
from beam_pipeline.steps.curate import Curation, RemovedDocuments, kept_documents
from beam_pipeline.steps.job import Job
from beam_pipeline.steps.tables import UnitCounts
from beam_pipeline.steps.unit_rows import UnitRows
from beam_pipeline.support import filesystem
from beam_pipeline.support import pipelines as beam
from beam_pipeline.support.errors import DataError, EngineMismatch
from beam_pipeline.support.pipelines import Metrics, TaggedOutput
from beam_pipeline.support.progress import Reporter, UnitProgress

BLOCKS, TAILS, COUNTS, STATISTICS = "blocks", "tails", "counts", "statistics"
EXCLUDED, USES = "excluded", "uses"


class TokenizeUnit(beam.DoFn):
    """A work unit → the places of its blocks of rows, and its tail, counts and statistics for each split.

    If an earlier attempt finished the unit, its file is read instead of tokenizing again.
    """

    def __init__(self, job: Job):
        self._job = job

    @property
    def at_once(self) -> int:
        """How many units a process without Beam tokenizes at once."""
        job = self._job
        return min(job.units_at_once, job.num_units) if job.config.overlaps_units else 1

    def setup(self) -> None:
        job = self._job
        self._tokenizer: AnyTokenizer | None = None
        self._curation = Curation(job.config)
        self._choose_split = SplitChooser(job.config.splits, job.config.seed, job.config.split_by)
        self._reporter = Reporter(job.progress)
        names = ("documents", "bytes", "tokens", "rows", *Excluded.NAMES)
        self._count = {name: Metrics.counter("prepare", name) for name in names}
        self._units_kept = Metrics.counter("prepare", "units_kept")
        self._misses = Metrics.counter("prepare", "engine_misses")
        self._unit_tokens = Metrics.distribution("prepare", "tokens_per_unit")

    def _make_tokenizer(self) -> AnyTokenizer:
        job = self._job
        return make_tokenizer(
            chat=job.chat,
            limit=job.length_limit,
            infilling=job.infilling,
            tokenizer_json=filesystem.read_bytes(job.tokenizer_json_path).decode(),
            vocab_size=job.vocab_size,
            template=job.template,
            engine=job.config.engine,
            parse_special_tokens=job.config.parse_special_tokens,
            control_ids=job.control_ids,
            threads=max(1, job.threads // self.at_once),
            input_bytes=job.input_bytes,
            seed=job.config.seed,
        )

    def process(self, element: tuple[WorkUnit, bytes]) -> Iterator[TaggedOutput]:
        """Processes one unit.

        Args:
            element: The unit, and its removals that depend on other units (`Removals.to_bytes`).
        """
        unit, data = element
        path = unit_path(self._job.staging, unit.index)
        identity = identity_of(self._job.fingerprint, unit, data)
        finished = find_unit(path, identity=identity)
        progress = UnitProgress(self._reporter, "tokenize", unit.bytes)
        if finished is None:
            finished = self._tokenize(unit, path, identity, Removals.from_bytes(data), progress)
        else:
            self._units_kept.inc()
        yield from self._outputs(unit, finished)
        progress.finish(for_next_stage=sum(map(finished.rows, range(len(finished.tails)))))

    def _tokenize(
        self,
        unit: WorkUnit,
        path: str,
        identity: Mapping[str, Any],
        removals: Removals,
        progress: UnitProgress,
    ) -> FinishedUnit:
        """Tokenizes and packs the unit, and writes its rows to the file `path`."""
        job, config = self._job, self._job.config
        if self._tokenizer is None:  # not in `setup`, since an engine takes seconds to start
            self._tokenizer = self._make_tokenizer()
        excluded = Excluded()
        bad_records: list[BadRecord] = []

        def on_bad(record: BadRecord) -> None:
            if config.on_bad_record == "fail":
                raise DataError(f"{describe(unit, record)}; --on_bad_record skip leaves such records out")
            bad_records.append(record)

        packing = {
            "packing": config.packing,
            "max_length": config.max_length,
            "pad_id": job.pad_id,
            "keep_starts": config.keep_starts,
        }
        rows = UnitRows(
            tokenizer=self._tokenizer,
            choose_split=self._choose_split,
            packers=[Packer(**packing) for _ in config.splits],
            vocab_size=job.vocab_size,
            on_bad=on_bad,
            record_columns=config.curation.record_columns,
        )
        earlier_use = self._tokenizer.use
        checksums = TextChecksums()
        removed = RemovedDocuments(config.curation.keep_columns)
        with create_unit(path, identity=identity, splits=len(config.splits)) as writer:
            try:
                # Reading, tokenizing and writing overlap.
                batches = kept_documents(
                    unit,
                    self._curation,
                    removals,
                    removed=removed,
                    excluded=excluded,
                    checksums=checksums,
                    advance=progress.advance,
                )
                with (
                    ahead(batches, threads=job.threads) as documents,
                    ahead(rows.blocks(documents), threads=job.threads) as blocks,
                ):
                    for split, packed in blocks:
                        for block in packed.divide():
                            writer.add(split, block)
            except EngineMismatch as error:
                place = describe_place(unit, error.name, error.place)
                raise DataError(f"{place}, work unit {unit.index}: {error}") from error
            checksums.check(unit, path, fingerprint=job.fingerprint, run=job.run)
            for earlier_pass in (matches_path, paragraphs_path, hashes_path, sketches_path):
                checksums.check(unit, earlier_pass(job.staging, unit.index), fingerprint=job.fingerprint)
            excluded.bad_records = len(bad_records)
            excluded.overlong_documents = rows.overlong
            excluded.add_removals(removed.removals())
            job.check_lock()  # the file appears at the end of this block
            finished = writer.end(
                tails=rows.tails,
                statistics=rows.statistics,
                excluded=excluded,
                use=self._tokenizer.use - earlier_use,
                bad_records=write_bad_records(job.output, unit, bad_records) if bad_records else None,
                removed=removed.write(job, unit),
                run=job.run,
                texts=checksums.by_name,
            )
        return finished

    def _outputs(self, unit: WorkUnit, finished: FinishedUnit) -> Iterator[TaggedOutput]:
        for place in finished.blocks:
            yield TaggedOutput(BLOCKS, place)
        for split, (tail, statistics) in enumerate(zip(finished.tails, finished.statistics, strict=True)):
            if tail is not None:
                yield TaggedOutput(TAILS, (split, unit.index, tail))
            yield TaggedOutput(STATISTICS, (split, statistics))
            for name in ("documents", "bytes", "tokens", "rows"):
                self._count[name].inc(getattr(statistics, name))
        for name in Excluded.NAMES:
            self._count[name].inc(getattr(finished.excluded, name))
        self._unit_tokens.update(sum(statistics.tokens for statistics in finished.statistics))
        rows = tuple(map(finished.rows, range(len(finished.tails))))
        tails = tuple(0 if tail is None else len(tail.ids) for tail in finished.tails)
        yield TaggedOutput(COUNTS, UnitCounts(unit.index, rows, tails))
        yield TaggedOutput(EXCLUDED, finished.excluded)
        self._misses.inc(finished.use.fallbacks.documents)
        yield TaggedOutput(USES, (finished.use.engine, finished.use))


class MergeStatistics(beam.CombineFn):
    """Adds up `SplitStatistics`. As a combiner, it does so on the workers before any shuffle."""

    def __init__(self, vocab_size: int):
        self._vocab_size = vocab_size

    def create_accumulator(self) -> SplitStatistics:
        return SplitStatistics.empty(self._vocab_size)

    def add_input(self, accumulator: SplitStatistics, element: SplitStatistics) -> SplitStatistics:
        return accumulator.merge(element)

    def merge_accumulators(self, accumulators: Iterable[SplitStatistics]) -> SplitStatistics:
        merged = self.create_accumulator()
        for accumulator in accumulators:
            merged.merge(accumulator)
        return merged

    def extract_output(self, accumulator: SplitStatistics) -> SplitStatistics:
        return accumulator
