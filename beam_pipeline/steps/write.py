"""From blocks of rows to shards, and from shards to a dataset."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import asdict

import apache_beam as beam
import google_crc32c
import numpy as np
from apache_beam.metrics import Metrics

from beam_pipeline import filesystem
from beam_pipeline.bad_records import Excluded
from beam_pipeline.dataset.commit import commit
from beam_pipeline.dataset.records import ExampleEncoder
from beam_pipeline.dataset.shards import ShardInfo, assemble, shard_name, write_shard
from beam_pipeline.dataset.statistics import SplitStatistics
from beam_pipeline.job import Job
from beam_pipeline.progress import Reporter
from beam_pipeline.rows.blocks import RowBlock
from beam_pipeline.rows.routing import Layout, RowTable
from beam_pipeline.steps.tokenize import Block, RowCounts


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
    rows = np.zeros((num_units + 1, num_splits), np.int64)
    seen = np.zeros(num_units + 1, np.int64)
    for unit, of_splits in counts:
        rows[unit] += of_splits
        seen[unit] += 1
    if (seen[:num_units] != 1).any():
        unit = int(np.flatnonzero(seen[:num_units] != 1)[0])
        raise AssertionError(f"work unit {unit} was counted {int(seen[unit])} times, not once")
    return RowTable(rows).to_bytes()


class KeptShards(beam.DoFn):
    """The record that an earlier run left of a shard it finished → its ShardInfo, if the file is still so."""

    def __init__(self, job: Job):
        self._job = job

    def setup(self) -> None:
        self._kept = Metrics.counter("prepare", "shards_kept")

    def process(self, path: str) -> Iterator[ShardInfo]:
        info = ShardInfo(**json.loads(filesystem.read_bytes(path)))
        shard = filesystem.join(self._job.split_folder(info.split), info.name)
        if filesystem.exists(shard):
            data = filesystem.read_bytes(shard)
            if len(data) == info.bytes and f"{google_crc32c.value(data):08x}" == info.crc32c:
                self._kept.inc()
                yield info


class RouteRows(beam.DoFn):
    """A block of rows → the part of it that goes to each shard, with slots; none to shards that are kept."""

    def __init__(self, job: Job):
        self._job = job

    def process(
        self, element: Block, table_bytes: bytes, kept: Iterable[ShardInfo] = ()
    ) -> Iterator[tuple[tuple[int, int], bytes]]:
        split, unit, first, data = element
        table = RowTable.from_bytes(table_bytes)
        block = RowBlock.from_bytes(data)
        done = {info.shard for info in kept if info.split == split}
        rank = table.first_rank(unit, split) + first
        shards, slots = layout_of(self._job, split, table).place(np.arange(rank, rank + len(block)))
        order = np.argsort(shards, kind="stable")
        ordered = shards[order]
        ends = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True)) + 1
        begin = 0
        for end in ends.tolist():
            shard, index = int(ordered[begin]), order[begin:end]
            if shard not in done:
                yield (split, shard), block.take(index, slots[index]).to_bytes()
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
            path=filesystem.join(job.split_folder(split), name),
            # Unique, so that attempts that overlap do not meet: each of them writes the same bytes.
            temporary=filesystem.join(job.staging, "shards", f"{name}.{uuid.uuid4().hex}"),
            split=split,
            shard=shard,
        )
        filesystem.write_bytes(
            filesystem.join(job.finished_folder, f"{name}.json"), json.dumps(asdict(info)).encode()
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
        excluded: Iterable[Excluded],
        tail_sizes: Iterable[tuple[int, bytes]],
        shards: Iterable[ShardInfo],
    ) -> None:
        table = RowTable.from_bytes(table_bytes)
        layouts = [layout_of(self._job, split, table) for split in range(len(self._job.config.splits))]
        commit(
            self._job,
            table=table,
            layouts=layouts,
            statistics=dict(statistics),
            excluded=sum(excluded, Excluded()),
            tail_sizes={split: np.frombuffer(sizes, np.int64) for split, sizes in tail_sizes},
            shards=list(shards),
        )
