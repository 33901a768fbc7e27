"""Where rows go: from the files of the finished units to the shards.

Rows reach their shards in one of two ways. If the dataset's folder is local, each shard takes its rows out of the
units' files: no row passes through the runner, whose memory stays the same however much text there is. In Cloud
Storage, where reading single rows would cost a request each, blocks of rows are read and grouped by the runner.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import apache_beam as beam
import numpy as np
from apache_beam.metrics import Metrics

from beam_pipeline import filesystem
from beam_pipeline.dataset.finished_units import BlockPlace, tails_path, unit_path
from beam_pipeline.dataset.sections import Section, open_sections, read_section
from beam_pipeline.dataset.shards import ShardInfo, matches_file
from beam_pipeline.job import Job
from beam_pipeline.parsing import parse_own_json
from beam_pipeline.rows.blocks import RowBlock, rows_per_block
from beam_pipeline.rows.routing import Layout, RowTable
from beam_pipeline.steps.tables import BlockTable, KeptTable

# Of 16 MiB at most each: what of a process's memory may be pages of these files, which the kernel takes back at need.
_OPEN_BLOCKS = 64


def layout_of(job: Job, split: int, table: RowTable) -> Layout:
    """Where the split's rows go."""
    config = job.config
    return Layout(
        split=config.split_names[split],
        num_rows=int(table.totals[split]),
        shard_size=config.shard_size,
        requested_shards=config.num_shards,
        shuffle=config.shuffle,
        seed=config.seed,
    )


class KeptShards(beam.DoFn):
    """The record that an earlier run left of a shard it finished → its ShardInfo, if the file is still so."""

    def __init__(self, job: Job):
        self._job = job

    def setup(self) -> None:
        self._kept = Metrics.counter("prepare", "shards_kept")

    def process(self, path: str) -> Iterator[ShardInfo]:
        try:
            info = ShardInfo(**parse_own_json(filesystem.read_bytes(path)))
        except (ValueError, TypeError):  # of a machine that crashed: the shard is written again, and compared
            return
        shard = filesystem.join(self._job.split_folder(info.split), info.name)
        if filesystem.exists(shard):
            if matches_file(info, shard):
                self._kept.inc()
                yield info
            else:  # damaged: it is in the way of the one that is written now
                self._job.check_lock()
                filesystem.delete([shard])


def block_path(job: Job, place: BlockPlace) -> str:
    """The file that a block of rows is kept in."""
    if place.unit < job.num_units:
        return unit_path(job.staging, place.unit)
    most = rows_per_block(job.config.max_length, job.vocab_size)
    return tails_path(job.staging, place.split, place.first // most)


class RouteRows(beam.DoFn):
    """A block of rows → the part of it that goes to each (split, shard), with slots; none to shards that are kept."""

    def __init__(self, job: Job):
        self._job = job

    def process(
        self, place: BlockPlace, table: RowTable, kept: KeptTable
    ) -> Iterator[tuple[tuple[int, int], RowBlock]]:
        rank = table.first_rank(place.unit, place.split) + place.first
        layout = layout_of(self._job, place.split, table)
        shards, slots = layout.place(np.arange(rank, rank + place.rows))
        wanted = np.flatnonzero(~np.isin(shards, kept.get(place.split, ())))
        if not len(wanted):
            return
        path = block_path(self._job, place)
        with open_sections(path) as file:
            block = RowBlock.from_bytes(read_section(file, place.section, path))
        order = wanted[np.argsort(shards[wanted], kind="stable")]
        for index in np.split(order, np.flatnonzero(np.diff(shards[order])) + 1):
            yield (place.split, int(shards[index[0]])), block.take(index, slots[index])


def list_shards(table: RowTable, kept: KeptTable, job: Job) -> Iterator[tuple[int, int]]:
    """The (split, shard) pairs that are to be written: all but those that are kept."""
    for split in range(len(job.config.splits)):
        shards = np.arange(layout_of(job, split, table).num_shards)
        for shard in np.setdiff1d(shards, kept.get(split, ())).tolist():
            yield split, shard


def gather_rows(
    job: Job, split: int, shard: int, *, table: RowTable, blocks: BlockTable
) -> Iterator[RowBlock]:
    """The rows of a shard, with slots, out of the local files that they are kept in."""
    layout = layout_of(job, split, table)
    records = layout.records_in(shard)
    ranks = layout.rank(np.full(records, shard), np.arange(records))
    for place, slots, rows in blocks.find(split, ranks):
        yield open_block(block_path(job, place), place.section).take(rows, slots)


@lru_cache(maxsize=_OPEN_BLOCKS)
def open_block(path: str, section: Section) -> RowBlock:
    """A block as views of its file: only the rows that are taken are read.

    The section's checksum is part of the cache's key, so that a file that replaced another is not taken for it.
    """
    with Path(path).open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    mapped.madvise(mmap.MADV_RANDOM)
    return RowBlock.from_bytes(memoryview(mapped)[section.offset : section.offset + section.size])
