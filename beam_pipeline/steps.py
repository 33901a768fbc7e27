"""The pipeline's steps as Beam's DoFns: thin, over functions that know nothing of Beam.

Elements between steps are blocks of rows as bytes, never single documents or rows; no output depends on how
the runner bundles elements. Each DoFn holds only the job, small and picklable; heavy state is made in `setup`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import apache_beam as beam
import numpy as np
from apache_beam.metrics import Metrics
from apache_beam.pvalue import TaggedOutput

from beam_pipeline import filesystem
from beam_pipeline.commit import commit
from beam_pipeline.dataset_statistics import SplitStatistics
from beam_pipeline.errors import DataError
from beam_pipeline.job import Job
from beam_pipeline.packing import Tail, pack_tails
from beam_pipeline.progress import Reporter
from beam_pipeline.records import ExampleEncoder
from beam_pipeline.routing import Layout, RowTable
from beam_pipeline.rows import RowBlock, id_dtype, rows_checksum
from beam_pipeline.shards import ShardInfo, assemble, shard_name, write_shard
from beam_pipeline.sources import describe, read_unit
from beam_pipeline.sources.units import DocumentBatch, WorkUnit
from beam_pipeline.tokenization.documents import DocumentTokenizer
from beam_pipeline.unit_rows import SplitChooser, unit_rows

BLOCKS, TAILS, ROW_COUNTS, STATISTICS = "blocks", "tails", "row_counts", "statistics"

# The largest element: some runners hold several in memory, and Dataflow refuses very large ones.
_BLOCK_BYTES = 16 << 20

# A block of one split's rows: (split, unit, number of the block's first row among the unit's, RowBlock as bytes).
Block = tuple[int, int, int, bytes]
# (unit, rows that it gave to each split); the tails count as one unit more.
RowCounts = tuple[int, tuple[int, ...]]


def layout_of(job: Job, split: int, table: RowTable) -> Layout:
    """Where the split's rows go."""
    config = job.config
    return Layout.make(
        split=config.split_names[split],
        num_rows=int(table.totals[split]),
        shard_size=config.shard_size,
        num_shards=config.num_shards,
        shuffle=config.shuffle,
        seed=config.seed,
    )


def build_row_table(counts: list[RowCounts], num_units: int, num_splits: int) -> bytes:
    """The `RowTable` of all units, as bytes.

    Raises:
      AssertionError: where a unit is missing or counted twice.
    """
    table = np.zeros((num_units + 1, num_splits), np.int64)
    seen = np.zeros(num_units + 1, np.int64)
    for unit, rows in counts:
        table[unit] += rows
        seen[unit] += 1
    if (seen[:num_units] != 1).any():
        unit = int(np.flatnonzero(seen[:num_units] != 1)[0])
        raise AssertionError(f"work unit {unit} was counted {int(seen[unit])} times, not once")
    return RowTable(table).to_bytes()


class ReadPlan(beam.DoFn):
    """The plan's path → its lines, a work unit each."""

    def process(self, path: str) -> Iterator[str]:
        yield from filesystem.read_bytes(path).decode().splitlines()


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
        )
        self._choose = SplitChooser(job.config.splits, job.config.seed)
        self._reporter = Reporter(job.progress)
        self._count = {
            name: Metrics.counter("prepare", name) for name in ("documents", "bytes", "tokens", "rows")
        }
        self._blank = Metrics.counter("prepare", "blank_documents")
        self._unit_tokens = Metrics.distribution("prepare", "tokens_per_unit")

    def process(self, line: str) -> Iterator[TaggedOutput]:
        job, unit = self._job, WorkUnit.from_json(line)
        results = unit_rows(
            self._documents(unit),
            tokenizer=self._tokenizer,
            choose=self._choose,
            num_splits=len(job.config.splits),
            packing=job.config.packing,
            max_length=job.config.max_length,
            pad_id=job.pad_id,
            keep_starts=job.keep_starts,
            vocab_size=job.vocab_size,
        )
        rows_per_block = max(1, _BLOCK_BYTES // (job.config.max_length * id_dtype(job.vocab_size).itemsize))
        for split, result in enumerate(results):
            for first in range(0, len(result.block), rows_per_block):
                block = result.block.take(slice(first, first + rows_per_block))
                yield TaggedOutput(BLOCKS, (split, unit.index, first, block.to_bytes()))
            if len(result.tail.ids):
                tail = (unit.index, result.tail.ids.tobytes(), result.tail.starts.tobytes())
                yield TaggedOutput(TAILS, (split, tail))
            yield TaggedOutput(STATISTICS, (split, result.statistics))
            for name, counter in self._count.items():
                counter.inc(getattr(result.statistics, name))
        self._unit_tokens.update(sum(result.statistics.tokens for result in results))
        yield TaggedOutput(ROW_COUNTS, (unit.index, tuple(len(result.block) for result in results)))
        size = sum(part.end - part.start for part in unit.parts)
        self._reporter.add("tokenize", size, of_next=sum(len(result.block) for result in results))

    def _documents(self, unit: WorkUnit) -> Iterator[DocumentBatch]:
        for batch in read_unit(unit, self._job.read_options):
            self._blank.inc(batch.blank)
            for bad in batch.bad:
                raise DataError(describe(unit, bad))
            yield batch


class PackTails(beam.DoFn):
    """A split's tails, in the order of their units → its last rows, ranked after all others."""

    def __init__(self, job: Job):
        self._job = job

    def setup(self) -> None:
        self._rows = Metrics.counter("prepare", "rows")
        self._padding = Metrics.counter("prepare", "padding")
        self._reporter = Reporter(self._job.progress)

    def process(self, element: tuple[int, Iterable[tuple[int, bytes, bytes]]]) -> Iterator[TaggedOutput]:
        job, (split, tails) = self._job, element
        dtype = id_dtype(job.vocab_size)
        ordered = [
            Tail(np.frombuffer(ids, dtype), np.frombuffer(starts, np.int64))
            for _, ids, starts in sorted(tails)
        ]
        block = pack_tails(ordered, job.config.max_length, job.pad_id, job.keep_starts)
        padding = block.ids.size - int(block.lengths.sum())
        statistics = SplitStatistics.empty(job.vocab_size)
        statistics.add_rows(len(block), padding, rows_checksum(block.ids, block.lengths))
        counts = [0] * len(job.config.splits)
        counts[split] = len(block)
        yield TaggedOutput(BLOCKS, (split, job.num_units, 0, block.to_bytes()))
        yield TaggedOutput(ROW_COUNTS, (job.num_units, tuple(counts)))
        yield TaggedOutput(STATISTICS, (split, statistics))
        self._rows.inc(len(block))
        self._padding.inc(padding)
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


class RouteRows(beam.DoFn):
    """A block of rows → the part of it that goes to each shard, with slots."""

    def __init__(self, job: Job):
        self._job = job

    def process(self, element: Block, table_bytes: bytes) -> Iterator[tuple[tuple[int, int], bytes]]:
        split, unit, first, data = element
        table = RowTable.from_bytes(table_bytes)
        block = RowBlock.from_bytes(data)
        rank = table.first_rank(unit, split) + first
        shards, slots = layout_of(self._job, split, table).place(np.arange(rank, rank + len(block)))
        order = np.argsort(shards, kind="stable")
        ordered = shards[order]
        ends = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True)) + 1
        begin = 0
        for end in ends.tolist():
            index = order[begin:end]
            yield (split, int(ordered[begin])), block.take(index, slots[index]).to_bytes()
            begin = end


class WriteShard(beam.DoFn):
    """All rows of a shard → its file; emits what the manifest says of it."""

    def __init__(self, job: Job):
        self._job = job

    def setup(self) -> None:
        job = self._job
        largest = max(job.vocab_size - 1, job.config.max_length if job.keep_starts else 1)
        self._encoder = ExampleEncoder(
            max_length=job.config.max_length, max_value=largest, features=job.features
        )
        self._reporter = Reporter(job.progress)
        self._records = Metrics.counter("prepare", "records_written")
        self._bytes = Metrics.counter("prepare", "bytes_written")

    def process(
        self, element: tuple[tuple[int, int], Iterable[bytes]], table_bytes: bytes
    ) -> Iterator[ShardInfo]:
        job, ((split, shard), parts) = self._job, element
        layout = layout_of(job, split, RowTable.from_bytes(table_bytes))
        records = layout.records_in(shard)
        name = shard_name(layout.split, shard, records)
        block = assemble((RowBlock.from_bytes(part) for part in parts), records, name)
        info = write_shard(
            block,
            encoder=self._encoder,
            folder=job.split_folder(split),
            staging=job.staging,
            split=split,
            shard=shard,
            name=name,
        )
        self._records.inc(info.records)
        self._bytes.inc(info.bytes)
        self._reporter.add("write", info.records)
        yield info


class CommitDataset(beam.DoFn):
    """Once, when every shard is there: the manifests."""

    def __init__(self, job: Job):
        self._job = job

    def process(
        self,
        _: None,
        table_bytes: bytes,
        statistics: Iterable[tuple[int, SplitStatistics]],
        shards: Iterable[ShardInfo],
    ) -> None:
        table = RowTable.from_bytes(table_bytes)
        layouts = [layout_of(self._job, split, table) for split in range(len(self._job.config.splits))]
        commit(self._job, table=table, layouts=layouts, statistics=dict(statistics), shards=list(shards))
