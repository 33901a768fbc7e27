"""Routes rows from the files of the finished units to the shards.

There are two ways. If the dataset's folder is local, each shard reads its rows from the units' files. No row passes
through the runner, so its memory does not depend on the size of the input. In Cloud Storage, reading a single row would
cost a request, so whole blocks are read and the runner groups their rows by shard. Documents that are not packed are
not shuffled, either, so each shard reads whole blocks from the units' files, one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from beam_pipeline.dataset.finished_units import BlockPlace, tails_path, unit_path
from beam_pipeline.dataset.sections import Section, map_section, open_sections, read_section
from beam_pipeline.dataset.shards import ShardInfo, file_sums, files_of_shard
from beam_pipeline.engines.token_arrays import id_dtype
from beam_pipeline.rows.blocks import RowBlock, rows_per_block
from beam_pipeline.rows.documents import DocumentBlock
from beam_pipeline.rows.routing import RowTable, ShardLayout
from beam_pipeline.steps.job import Job, OutputJob
from beam_pipeline.steps.tables import BlockTable, KeptTable
from beam_pipeline.support import filesystem, memory
from beam_pipeline.support import pipelines as beam
from beam_pipeline.support.pipelines import Metrics
from tokenmill_reader.format.json_text import parse_own_json

# Memory-mapped blocks per process, of at most 16 MiB each. The kernel reclaims their pages if memory runs short.
_OPEN_BLOCKS = 64

# If at least this share of a block's rows is requested, the whole block is read at once.
_LEAST_SHARE_READ_WHOLE = 1 / 16


def layout_of(job: Job, split: int, table: RowTable) -> ShardLayout:
    """Returns the layout of a split, which maps its rows to places in shards."""
    config = job.config
    return ShardLayout(
        split=config.split_names[split],
        num_rows=int(table.totals[split]),
        shard_size=config.shard_size,
        requested_shards=config.num_shards,
        shuffle=config.shuffle,
        seed=config.seed,
    )


class KeptShards(beam.DoFn):
    """The record of a shard that an earlier run finished → its ShardInfo, if the shard's file still matches it."""

    def __init__(self, job: OutputJob):
        self._job = job

    def setup(self) -> None:
        self._shards_kept = Metrics.counter("prepare", "shards_kept")

    def process(self, path: str) -> Iterator[ShardInfo]:
        info = kept_shard(self._job, path)
        if info is not None:
            self._shards_kept.inc()
            yield info


def kept_shard(job: OutputJob, path: str) -> ShardInfo | None:
    """Returns the ShardInfo in the record `path`. None if the shard's files do not match it.

    Deletes damaged files, because this run writes others to their paths.
    """
    try:
        info = ShardInfo(**parse_own_json(filesystem.read_bytes(path)))
    except (ValueError, TypeError):  # truncated by a crash; the shard is written again and compared
        return None
    folder = job.split_folder(info.split)
    recorded = {filesystem.join(folder, name): sums for name, sums in files_of_shard(info.to_json()).items()}
    present = {path: file_sums(path) for path in recorded if filesystem.exists(path)}
    damaged = [path for path, sums in present.items() if sums != recorded[path]]
    if damaged:
        job.check_lock()
        filesystem.delete(damaged)
    return info if present == recorded else None


def block_path(job: Job, place: BlockPlace) -> str:
    """Returns the path of the file that contains a block of rows."""
    if place.unit < job.num_units:
        return unit_path(job.staging, place.unit)
    block_rows = rows_per_block(job.config.max_length, job.vocab_size)
    return tails_path(job.staging, place.split, place.first_row // block_rows)


class RouteRows(beam.DoFn):
    """A block of rows → ((split, shard), the rows of the block that belong there, with their slots).

    Shards of an earlier run that are kept get no rows.
    """

    def __init__(self, job: Job):
        self._job = job

    def process(
        self, place: BlockPlace, table: RowTable, kept: KeptTable
    ) -> Iterator[tuple[tuple[int, int], RowBlock]]:
        rank = table.first_rank(place.unit, place.split) + place.first_row
        layout = layout_of(self._job, place.split, table)
        shards, slots = layout.place(np.arange(rank, rank + place.rows))
        routed_rows = np.flatnonzero(~np.isin(shards, kept.get(place.split, ())))
        if not len(routed_rows):
            return
        path = block_path(self._job, place)
        with open_sections(path) as file:
            block = RowBlock.from_bytes(read_section(file, place.section, path))
        order = routed_rows[np.argsort(shards[routed_rows], kind="stable")]
        for index in np.split(order, np.flatnonzero(np.diff(shards[order])) + 1):
            yield (place.split, int(shards[index[0]])), block.take(index, slots[index])


def list_shards(table: RowTable, kept: KeptTable, job: Job) -> Iterator[tuple[int, list[int]]]:
    """Yields (split, some of its shards) until it has yielded all shards but those that are kept.

    The rows of the shards of an element are gathered at the same time.
    """
    for split in range(len(job.config.splits)):
        layout = layout_of(job, split, table)
        shards = np.setdiff1d(np.arange(layout.num_shards), kept.get(split, ())).tolist()
        shards_at_once = _shards_at_once(job, layout)
        for start in range(0, len(shards), shards_at_once):
            yield split, shards[start : start + shards_at_once]


def _shards_at_once(job: Job, layout: ShardLayout) -> int:
    """Returns how many shards a process gathers at a time.

    A process of one thread gathers one, because the runner has other processes for the other shards.
    """
    if job.threads == 1 or not layout.num_shards:
        return 1
    if job.config.packing == "none":  # documents are not gathered, but copied block by block
        return job.threads
    row_bytes = job.config.max_length * id_dtype(job.vocab_size, has_targets=job.config.has_targets).itemsize
    gathered_bytes = memory.gathered_at_once(layout.num_rows * row_bytes, most=job.gathered_bytes)
    return max(1, gathered_bytes // (layout.records_in(0) * row_bytes))


def find_rows(
    job: Job, split: int, shards: list[int], *, table: RowTable, blocks: BlockTable
) -> Iterator[tuple[BlockPlace, np.ndarray, np.ndarray]]:
    """Finds the rows of shards in the blocks of the units. The slots are numbered through all these shards.

    Yields:
        The place of a block, the numbers of the requested rows in it, and their slots: int64 [requested rows].
    """
    layout = layout_of(job, split, table)
    records = np.array([layout.records_in(shard) for shard in shards])
    slots = np.arange(records.sum()) - np.repeat(np.cumsum(records) - records, records)
    ranks = layout.rank(np.repeat(shards, records), slots)
    for place, indices, rows in blocks.find(split, ranks):
        yield place, rows, indices


def map_block(job: Job, place: BlockPlace, needed_rows: int) -> RowBlock:
    """Maps a block in the local file of its unit, of which this number of rows is needed."""
    needs_all = needed_rows >= _LEAST_SHARE_READ_WHOLE * place.rows
    return open_block(block_path(job, place), place.section, needs_all=needs_all)


def gather_documents(
    job: Job, split: int, shard: int, *, table: RowTable, blocks: BlockTable
) -> Iterator[DocumentBlock]:
    """Yields the documents of a shard in their order, from the units' files, local or remote."""
    layout = layout_of(job, split, table)
    first_rank = int(layout.rank(np.array(shard), np.array(0)))
    for place, first_row, end_row in blocks.spans(split, first_rank, first_rank + layout.records_in(shard)):
        path = block_path(job, place)
        with open_sections(path) as file:
            yield DocumentBlock.from_bytes(read_section(file, place.section, path)).cut(first_row, end_row)


@lru_cache(maxsize=_OPEN_BLOCKS)
def open_block(path: str, section: Section, *, needs_all: bool) -> RowBlock:
    """Maps a block's file into memory. Its rows are read when they are used, or now if all or many of them are needed.

    The section includes its checksum and is part of the cache's key, so a file that was replaced is opened again.
    """
    return RowBlock.from_bytes(map_section(path, section, needs_all=needs_all))
