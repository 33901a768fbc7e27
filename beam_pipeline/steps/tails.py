"""Packs the units' tails into a split's last rows, each block of rows on its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from beam_pipeline.dataset.finished_units import BlockPlace, tails_path
from beam_pipeline.dataset.sections import create_sections
from beam_pipeline.dataset.statistics import SplitStatistics
from beam_pipeline.engines.token_arrays import id_dtype
from beam_pipeline.rows.blocks import rows_per_block
from beam_pipeline.rows.packing import Tail
from beam_pipeline.rows.tails import TailPiece, TailTable, cut_tail, pack_pieces
from beam_pipeline.steps.job import Job
from beam_pipeline.steps.tokenize import BLOCKS, STATISTICS
from beam_pipeline.support import pipelines as beam
from beam_pipeline.support.pipelines import Metrics, TaggedOutput
from beam_pipeline.support.progress import Reporter


class CutTails(beam.DoFn):
    """A unit's tail → ((split, number of a block of tails), the piece of the tail that belongs there)."""

    def __init__(self, job: Job):
        self._job = job

    def process(
        self, element: tuple[int, int, Tail], table: TailTable
    ) -> Iterator[tuple[tuple[int, int], TailPiece]]:
        split, unit, tail = element
        config = self._job.config
        block_tokens = rows_per_block(config.max_length, self._job.vocab_size) * config.max_length
        for block_number, piece in cut_tail(tail, table.first_token(unit, split), block_tokens):
            yield (split, block_number), piece


class PackTails(beam.DoFn):
    """The pieces of a block of tails → the place of its rows, ranked after all other rows, and their statistics."""

    def __init__(self, job: Job):
        self._job = job

    def setup(self) -> None:
        self._rows = Metrics.counter("prepare", "rows")
        self._padding = Metrics.counter("prepare", "padding")
        self._reporter = Reporter(self._job.progress)

    def process(
        self, element: tuple[tuple[int, int], Iterable[TailPiece]], table: TailTable
    ) -> Iterator[TaggedOutput]:
        job, ((split, block_number), pieces) = self._job, element
        config = job.config
        block_rows = rows_per_block(config.max_length, job.vocab_size)
        tokens = int(table.totals[split]) - block_number * block_rows * config.max_length
        block = pack_pieces(
            pieces,
            tokens=min(tokens, block_rows * config.max_length),
            max_length=config.max_length,
            pad_id=job.pad_id,
            keep_starts=job.config.keep_starts,
            dtype=id_dtype(job.vocab_size),
        )
        statistics = SplitStatistics.empty(job.vocab_size)
        statistics.add_rows(block)
        with create_sections(tails_path(job.staging, split, block_number)) as sections:
            section = sections.add(*block.parts())
            sections.end({"fingerprint": job.fingerprint, "tails": [split, block_number]})
            job.check_lock()  # the file appears at the end of this block
        yield TaggedOutput(
            BLOCKS, BlockPlace(split, job.num_units, block_number * block_rows, len(block), section)
        )
        yield TaggedOutput(STATISTICS, (split, statistics))
        self._rows.inc(len(block))
        self._padding.inc(statistics.padding)
        self._reporter.add("tokenize", 0, for_next_stage=len(block))
