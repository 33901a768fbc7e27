"""Writes shards, and commits them as a dataset."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import apache_beam as beam
from apache_beam.metrics import Metrics

from beam_pipeline import filesystem
from beam_pipeline.dataset.bad_records import Excluded
from beam_pipeline.dataset.document_shards import write_documents
from beam_pipeline.dataset.shards import ShardInfo, assemble, shard_name, write_shard
from beam_pipeline.dataset.statistics import SplitStatistics
from beam_pipeline.job import Job
from beam_pipeline.progress import Reporter
from beam_pipeline.rows.blocks import RowBlock
from beam_pipeline.rows.documents import DocumentBlock
from beam_pipeline.rows.routing import RowTable
from beam_pipeline.rows.tails import TailTable
from beam_pipeline.steps.commit import commit
from beam_pipeline.steps.route import gather_documents, gather_rows, layout_of, open_block
from beam_pipeline.steps.tables import BlockTable
from beam_pipeline.tokenization.fallbacks import EngineUse


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
        yield self._count(self._write(split, shard, blocks, table))

    def _write(self, split: int, shard: int, blocks: Iterable[RowBlock], table: RowTable) -> ShardInfo:
        job = self._job
        layout = layout_of(job, split, table)
        records = layout.records_in(shard)
        name = shard_name(layout.split, shard, records, job.config.output_format)
        return self._write_files(
            blocks,
            records,
            path=filesystem.join(job.split_folder(split), name),
            temporary=job.temporary_path(name),
            split=split,
            shard=shard,
            before_publishing=job.record_shard,
        )

    def _count(self, info: ShardInfo) -> ShardInfo:
        self._records.inc(info.records)
        self._bytes.inc(info.bytes)
        self._reporter.add("write", info.records)
        return info

    def _write_files(self, blocks: Iterable[RowBlock], records: int, **place: Any) -> ShardInfo:
        whole = assemble(blocks, records, place["path"])
        return write_shard(whole, encode=self._format.encode, with_offsets=self._format.has_offsets, **place)


class GatherShards(WriteShard):
    """(split, shard) pairs → the ShardInfos of the files that it writes at the same time, one per thread.

    The rows are read from the local files of the units.
    """

    def process(
        self, element: list[tuple[int, int]], table: RowTable, blocks: BlockTable
    ) -> Iterator[ShardInfo]:
        def write(place: tuple[int, int]) -> ShardInfo:
            return self._write(*place, self._gather(self._job, *place, table=table, blocks=blocks), table)

        with ThreadPoolExecutor(len(element)) as threads:
            for info in threads.map(write, element):
                yield self._count(info)

    _gather = staticmethod(gather_rows)

    def teardown(self) -> None:
        open_block.cache_clear()


class GatherDocuments(GatherShards):
    """As GatherShards, for pairs of files of documents, which it reads from the units' files, wherever these are."""

    _gather = staticmethod(gather_documents)

    def _write_files(self, documents: Iterable[DocumentBlock], records: int, **place: Any) -> ShardInfo:
        return write_documents(documents, write=self._format.write, **place)


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
