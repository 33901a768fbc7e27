"""From a work unit to blocks of rows, tails, counts and statistics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import apache_beam as beam
import numpy as np
from apache_beam.metrics import Metrics
from apache_beam.pvalue import TaggedOutput

from beam_pipeline import filesystem
from beam_pipeline.bad_records import Excluded, write_bad_records
from beam_pipeline.dataset.statistics import SplitStatistics
from beam_pipeline.errors import DataError
from beam_pipeline.job import Job
from beam_pipeline.progress import Reporter
from beam_pipeline.rows.blocks import id_dtype
from beam_pipeline.rows.packing import Packer, Tail, pack_tails
from beam_pipeline.rows.unit_rows import SplitChooser, UnitRows
from beam_pipeline.sources import describe, describe_place, read_unit
from beam_pipeline.sources.units import BadRecord, DocumentBatch, WorkUnit
from beam_pipeline.tokenization.documents import DocumentTokenizer
from beam_pipeline.tokenization.sample_check import EngineMismatch

BLOCKS, TAILS, ROW_COUNTS, STATISTICS, EXCLUDED = "blocks", "tails", "row_counts", "statistics", "excluded"
TAIL_SIZES = "tail_sizes"

# The largest element: some runners hold several in memory, and Dataflow refuses very large ones.
_BLOCK_BYTES = 16 << 20

# A block of one split's rows: (split, unit, number of the block's first row among the unit's, RowBlock's bytes).
Block = tuple[int, int, int, bytes]
# (unit, rows that it gave to each split); the tails count as one unit more.
RowCounts = tuple[int, tuple[int, ...]]


class ReadPlan(beam.DoFn):
    """The plan's path → (unit's number, its line) for each work unit."""

    def process(self, path: str) -> Iterator[tuple[int, str]]:
        yield from enumerate(filesystem.read_bytes(path).decode().splitlines())


class TokenizeUnit(beam.DoFn):
    """A work unit → blocks of rows, and for each split its tail, row counts and statistics."""

    def __init__(self, job: Job):
        self._job = job

    def setup(self) -> None:
        job = self._job
        self._tokenizer = DocumentTokenizer(
            tokenizer_json=filesystem.read_bytes(job.tokenizer_json_path).decode(),
            vocab_size=job.vocab_size,
            template=job.template,
            engine=job.config.engine,
            parse_special_tokens=job.config.parse_special_tokens,
            control_ids=job.control_ids,
            threads=job.engine_threads,
            input_bytes=job.input_bytes,
            seed=job.config.seed,
        )
        self._choose = SplitChooser(job.config.splits, job.config.seed, job.config.split_by)
        self._reporter = Reporter(job.progress)
        names = ("documents", "bytes", "tokens", "rows", *Excluded.NAMES)
        self._count = {name: Metrics.counter("prepare", name) for name in names}
        self._misses = Metrics.counter("prepare", "engine_misses")
        self._unit_tokens = Metrics.distribution("prepare", "tokens_per_unit")

    def process(self, element: tuple[int, str, list[bytes]]) -> Iterator[TaggedOutput]:
        """Tokenizes one unit.

        Args:
          element: the unit's number, its line in the plan, and the numbers of its documents, counted over the unit,
            that are duplicates of others (int64 arrays as bytes).
        """
        _, line, duplicates = element
        job, unit = self._job, WorkUnit.from_json(line)
        excluded, bad = Excluded(), []
        dropped = np.sort(
            np.concatenate([np.empty(0, np.int64), *(np.frombuffer(d, np.int64) for d in duplicates)])
        )
        config = job.config
        packing = {
            "packing": config.packing,
            "max_length": config.max_length,
            "pad_id": job.pad_id,
            "keep_starts": job.keep_starts,
        }
        rows = UnitRows(
            tokenizer=self._tokenizer,
            choose=self._choose,
            packers=[Packer(**packing) for _ in config.splits],
            vocab_size=job.vocab_size,
        )
        counts = [0] * len(config.splits)
        rows_per_block = max(1, _BLOCK_BYTES // (config.max_length * id_dtype(job.vocab_size).itemsize))
        misses = self._tokenizer.misses
        try:
            for split, packed in rows.blocks(self._documents(unit, dropped, excluded, bad)):
                for first in range(0, len(packed), rows_per_block):
                    block = packed.take(slice(first, first + rows_per_block))
                    yield TaggedOutput(BLOCKS, (split, unit.index, counts[split], block.to_bytes()))
                    counts[split] += len(block)
        except EngineMismatch as error:
            place = describe_place(unit, error.name, error.place)
            raise DataError(f"{place}, work unit {unit.index}: {error}") from error
        self._misses.inc(self._tokenizer.misses - misses)
        if bad:
            write_bad_records(job.output, unit, bad)
        for split, (tail, statistics) in enumerate(zip(rows.tails, rows.statistics, strict=True)):
            if tail is not None:
                data = (unit.index, tail.ids.tobytes(), tail.starts.tobytes())
                yield TaggedOutput(TAILS, (split, data))
            yield TaggedOutput(STATISTICS, (split, statistics))
            for name in ("documents", "bytes", "tokens", "rows"):
                self._count[name].inc(getattr(statistics, name))
        for name in Excluded.NAMES:
            self._count[name].inc(getattr(excluded, name))
        self._unit_tokens.update(sum(statistics.tokens for statistics in rows.statistics))
        yield TaggedOutput(ROW_COUNTS, (unit.index, tuple(counts)))
        yield TaggedOutput(EXCLUDED, excluded)
        self._reporter.add("tokenize", unit.bytes, of_next=sum(counts))

    def _documents(
        self, unit: WorkUnit, dropped: np.ndarray, excluded: Excluded, bad: list[BadRecord]
    ) -> Iterator[DocumentBatch]:
        """The unit's documents less the duplicates; counts what is left out, and gathers the bad records."""
        first = 0
        for batch in read_unit(unit, self._job.read_options):
            if batch.bad and self._job.config.on_bad_record == "fail":
                raise DataError(describe(unit, batch.bad[0]))
            bad += batch.bad
            within = dropped[slice(*np.searchsorted(dropped, [first, first + len(batch.texts)]))] - first
            excluded.records += len(batch.texts) + batch.blank + len(batch.bad)
            excluded.blank_documents += batch.blank
            excluded.bad_records += len(batch.bad)
            excluded.duplicate_documents += len(within)
            first += len(batch.texts)
            yield batch.without(within) if len(within) else batch


class PackTails(beam.DoFn):
    """A split's tails, in the order of their units → its last rows, ranked after all others; and the tails' sizes."""

    def __init__(self, job: Job):
        self._job = job

    def setup(self) -> None:
        self._rows = Metrics.counter("prepare", "rows")
        self._padding = Metrics.counter("prepare", "padding")
        self._reporter = Reporter(self._job.progress)

    def process(self, element: tuple[int, Iterable[tuple[int, bytes, bytes]]]) -> Iterator[TaggedOutput]:
        job, (split, tails) = self._job, element
        dtype = id_dtype(job.vocab_size)
        sizes = np.zeros(job.num_units, np.int64)
        ordered = []
        for unit, ids, starts in sorted(tails):
            ordered.append(Tail(np.frombuffer(ids, dtype), np.frombuffer(starts, np.int64)))
            sizes[unit] = len(ordered[-1].ids)
        block = pack_tails(ordered, job.config.max_length, job.pad_id, job.keep_starts)
        statistics = SplitStatistics.empty(job.vocab_size)
        statistics.add_rows(block)
        counts = [0] * len(job.config.splits)
        counts[split] = len(block)
        yield TaggedOutput(BLOCKS, (split, job.num_units, 0, block.to_bytes()))
        yield TaggedOutput(ROW_COUNTS, (job.num_units, tuple(counts)))
        yield TaggedOutput(TAIL_SIZES, (split, sizes.tobytes()))
        yield TaggedOutput(STATISTICS, (split, statistics))
        self._rows.inc(len(block))
        self._padding.inc(statistics.padding)
        self._reporter.add("tokenize", 0, of_next=len(block))


class MergeStatistics(beam.CombineFn):
    """Adds up `SplitStatistics`, a split's units before they leave their worker."""

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
