"""Writes shards, and commits them as a dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam.metrics import Metrics

from beam_pipeline.dataset.bad_records import Excluded
from beam_pipeline.dataset.document_shards import write_documents
from beam_pipeline.dataset.finished_units import BlockPlace
from beam_pipeline.dataset.shards import Assembly, ShardInfo, assemble, shard_name, write_shard
from beam_pipeline.dataset.statistics import SplitStatistics
from beam_pipeline.engines.fallbacks import EngineUse
from beam_pipeline.rows.blocks import RowBlock
from beam_pipeline.rows.routing import Layout, RowTable
from beam_pipeline.rows.tails import TailTable
from beam_pipeline.steps.commit import commit
from beam_pipeline.steps.job import Job
from beam_pipeline.steps.route import find_rows, gather_documents, layout_of, open_block, read_rows
from beam_pipeline.steps.tables import BlockTable
from beam_pipeline.support import filesystem
from beam_pipeline.support.progress import Reporter

MOST_THREADS = 4  # a third of writing a shard needs Python's lock


class WriteShard(beam.DoFn):
    """All rows of a shard → the ShardInfo of the file that it writes, for the manifest."""

    def __init__(self, job: Job):
        self._job = job

    def setup(self) -> None:
        self._format = self._job.make_format()
        self._reporter = Reporter(self._job.progress)
        self._records = Metrics.counter("prepare", "records_written")
        self._bytes = Metrics.counter("prepare", "bytes_written")

    def process(
        self, element: tuple[tuple[int, int], Iterable[RowBlock]], table: RowTable
    ) -> Iterator[ShardInfo]:
        (split, shard), blocks = element
        layout = layout_of(self._job, split, table)
        rows = assemble(blocks, layout.records_in(shard), f"shard {shard} of {layout.split}")
        yield self._count(self._write_rows(rows, **self._place(layout, split, shard)))

    def _place(self, layout: Layout, split: int, shard: int) -> dict[str, Any]:
        """Returns the arguments of `write_shard` and `write_documents` that do not depend on what is written."""
        job = self._job
        name = shard_name(layout.split, shard, layout.records_in(shard), job.config.output_format)
        return {
            "path": filesystem.join(job.split_folder(split), name),
            "temporary": job.temporary_path(name),
            "split": split,
            "shard": shard,
            "before_publishing": job.record_shard,
        }

    def _write_rows(self, rows: RowBlock, **place: Any) -> ShardInfo:
        return write_shard(rows, encode=self._format.encode, with_offsets=self._format.has_offsets, **place)

    def _count(self, info: ShardInfo) -> ShardInfo:
        self._records.inc(info.records)
        self._bytes.inc(info.bytes)
        self._reporter.add("write", info.records)
        return info


class GatherShards(WriteShard):
    """A split and some of its shards → the ShardInfos of the files that it writes, several at the same time.

    The rows are read from the local files of the units.
    """

    def process(
        self, element: tuple[int, list[int]], table: RowTable, blocks: BlockTable
    ) -> Iterator[ShardInfo]:
        split, shards = element
        layout = layout_of(self._job, split, table)
        with ThreadPoolExecutor(min(len(shards), self._job.threads, MOST_THREADS)) as threads:
            write = self._writer(threads, layout, split, shards, table=table, blocks=blocks)
            for info in threads.map(write, shards):
                yield self._count(info)

    def _writer(
        self, threads: Executor, layout: Layout, split: int, shards: list[int], **tables: Any
    ) -> Callable[[int], ShardInfo]:
        """Returns a function that writes one of the shards."""
        ends = np.cumsum([layout.records_in(shard) for shard in shards]).tolist()
        spans = dict(zip(shards, map(slice, [0, *ends], ends), strict=False))
        gathered = Assembly(ends[-1], f"shards {shards[0]} to {shards[-1]} of {layout.split}")

        def gather(found: tuple[BlockPlace, np.ndarray, np.ndarray]) -> None:
            gathered.add(read_rows(self._job, *found))

        for _ in threads.map(gather, find_rows(self._job, split, shards, **tables)):
            pass
        rows = gathered.rows()
        return lambda shard: self._write_rows(rows.take(spans[shard]), **self._place(layout, split, shard))

    def teardown(self) -> None:
        open_block.cache_clear()


class GatherDocuments(GatherShards):
    """As GatherShards, for files of documents, which it reads from the units' files, wherever these are."""

    def _writer(
        self, threads: Executor, layout: Layout, split: int, shards: list[int], **tables: Any
    ) -> Callable[[int], ShardInfo]:
        def write(shard: int) -> ShardInfo:
            documents = gather_documents(self._job, split, shard, **tables)
            place = self._place(layout, split, shard)
            return write_documents(
                documents, write=self._format.write, has_index=self._format.has_index, **place
            )

        return write


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
    ) -> None:
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
