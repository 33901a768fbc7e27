"""Writes shards, and commits them as a dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from beam_pipeline.dataset.bad_records import Excluded
from beam_pipeline.dataset.document_shards import write_documents
from beam_pipeline.dataset.finished_units import BlockPlace
from beam_pipeline.dataset.shards import Assembly, ShardInfo, assemble, write_shard
from beam_pipeline.dataset.statistics import SplitStatistics
from beam_pipeline.engines.fallbacks import EngineUse
from beam_pipeline.formats.base import DocumentFormat, RowFormat
from beam_pipeline.rows.blocks import RowBlock
from beam_pipeline.rows.routing import RowTable, ShardLayout
from beam_pipeline.rows.tails import TailTable
from beam_pipeline.steps.commit import commit
from beam_pipeline.steps.job import Job
from beam_pipeline.steps.route import find_rows, gather_documents, layout_of, map_block, open_block
from beam_pipeline.steps.tables import BlockTable
from beam_pipeline.support import pipelines as beam
from beam_pipeline.support.pipelines import Metrics
from beam_pipeline.support.progress import Reporter
from tokenmill_reader.format.names import shard_name

MOST_THREADS = 4  # a third of writing a shard needs Python's lock


class WriteShards(beam.DoFn):
    """Some shards → the ShardInfo of each file that it writes, for the manifest.

    Args:
        job: The run.
        write: Writes the shards of an element: `write_grouped`, `write_gathered` or `write_gathered_documents`. It gets
            the job, the format of the shards, the element and the side inputs.
    """

    def __init__(self, job: Job, write: Callable[..., Iterator[ShardInfo]]):
        self._job = job
        self._write = write

    def setup(self) -> None:
        self._format = self._job.make_format()
        self._reporter = Reporter(self._job.progress)
        self._records = Metrics.counter("prepare", "records_written")
        self._bytes = Metrics.counter("prepare", "bytes_written")

    def process(self, element: Any, *tables: Any) -> Iterator[ShardInfo]:
        for info in self._write(self._job, self._format, element, *tables):
            self._records.inc(info.records)
            self._bytes.inc(info.bytes)
            self._reporter.add("write", info.records)
            yield info

    def teardown(self) -> None:
        open_block.cache_clear()


def write_grouped(
    job: Job,
    shard_format: RowFormat,
    element: tuple[tuple[int, int], Iterable[RowBlock]],
    table: RowTable,
) -> Iterator[ShardInfo]:
    """Writes the shard whose rows the runner has grouped."""
    (split, shard), blocks = element
    layout = layout_of(job, split, table)
    rows = assemble(blocks, layout.records_in(shard), f"shard {shard} of {layout.split}")
    yield _write_rows(job, shard_format, layout, split, shard, rows)


def write_gathered(
    job: Job, shard_format: RowFormat, element: tuple[int, list[int]], table: RowTable, blocks: BlockTable
) -> Iterator[ShardInfo]:
    """Writes some shards of a split, several at the same time. Their rows are read from the units' local files."""
    split, shards = element
    layout = layout_of(job, split, table)
    ends = np.cumsum([layout.records_in(shard) for shard in shards]).tolist()
    spans = dict(zip(shards, map(slice, [0, *ends], ends), strict=False))
    assembly = Assembly(ends[-1], f"shards {shards[0]} to {shards[-1]} of {layout.split}")

    def gather(block_rows: tuple[BlockPlace, np.ndarray, np.ndarray]) -> None:
        place, rows, slots = block_rows
        assembly.add(map_block(job, place, needed_rows=len(rows)), slots, rows)

    with _thread_pool(job, shards) as pool:
        for _ in pool.map(gather, find_rows(job, split, shards, table=table, blocks=blocks)):
            pass
        rows = assembly.rows()
        yield from pool.map(
            lambda shard: _write_rows(job, shard_format, layout, split, shard, rows.take(spans[shard])),
            shards,
        )


def write_gathered_documents(
    job: Job,
    shard_format: DocumentFormat,
    element: tuple[int, list[int]],
    table: RowTable,
    blocks: BlockTable,
) -> Iterator[ShardInfo]:
    """Writes some shards of documents, several at the same time, from the units' files, local or remote."""
    split, shards = element
    layout = layout_of(job, split, table)

    def write(shard: int) -> ShardInfo:
        documents = gather_documents(job, split, shard, table=table, blocks=blocks)
        destination = _destination(job, layout, split, shard)
        return write_documents(
            documents, write=shard_format.write, has_index=shard_format.has_index, **destination
        )

    with _thread_pool(job, shards) as pool:
        yield from pool.map(write, shards)


def _write_rows(
    job: Job, shard_format: RowFormat, layout: ShardLayout, split: int, shard: int, rows: RowBlock
) -> ShardInfo:
    destination = _destination(job, layout, split, shard)
    return write_shard(rows, encode=shard_format.encode, with_offsets=shard_format.has_offsets, **destination)


def _destination(job: Job, layout: ShardLayout, split: int, shard: int) -> dict[str, Any]:
    name = shard_name(layout.split, shard, layout.records_in(shard), job.config.output_format)
    return job.shard_destination(split, shard, name)


def _thread_pool(job: Job, shards: list[int]) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(len(shards), job.threads, MOST_THREADS))


class CommitDataset(beam.DoFn):
    """Writes the manifests, once, after all shards are written."""

    def __init__(self, job: Job):
        self._job = job

    def process(
        self,
        _: None,
        table: RowTable,
        statistics: Iterable[tuple[int, SplitStatistics]],
        excluded: Iterable[Excluded],
        uses: Iterable[tuple[tuple[str, str], EngineUse]],
        tails: TailTable,
        shards: Iterable[ShardInfo],
        report: Iterable[None] = (),
    ) -> None:
        """Commits the dataset. `report` is an element that exists when the report of decontamination is written."""
        layouts = [layout_of(self._job, split, table) for split in range(len(self._job.config.splits))]
        commit(
            self._job,
            table=table,
            layouts=layouts,
            statistics=dict(statistics),
            excluded=sum(excluded, Excluded()),
            uses=[use for _, use in sorted(uses, key=lambda item: item[0])],
            tail_sizes=dict(enumerate(tails.sizes.T)),
            shards=list(shards),
        )
