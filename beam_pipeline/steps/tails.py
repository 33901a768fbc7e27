"""From the units' tails to a split's last rows: each block of them by itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import apache_beam as beam
import numpy as np
from apache_beam.metrics import Metrics
from apache_beam.pvalue import TaggedOutput

from beam_pipeline.dataset.finished_units import tails_path
from beam_pipeline.dataset.sections import create_sections
from beam_pipeline.dataset.statistics import SplitStatistics
from beam_pipeline.job import Job
from beam_pipeline.progress import Reporter
from beam_pipeline.rows.blocks import rows_per_block
from beam_pipeline.rows.packing import Tail
from beam_pipeline.rows.tails import cut_tail, pack_pieces
from beam_pipeline.steps.tables import tail_table
from beam_pipeline.steps.tokenize import BLOCKS, STATISTICS
from beam_pipeline.tokenization.token_arrays import id_dtype


class CutTails(beam.DoFn):
    """A unit's tail → its pieces, by (split, number of the block of tails that they belong in)."""

    def __init__(self, job: Job):
        self._job = job

    def process(
        self, element: tuple[int, int, bytes, bytes], table_bytes: bytes
    ) -> Iterator[tuple[tuple[int, int], tuple[int, bytes, bytes]]]:
        split, unit, ids, starts = element
        config = self._job.config
        tail = Tail(np.frombuffer(ids, id_dtype(self._job.vocab_size)), np.frombuffer(starts, np.int64))
        block_tokens = rows_per_block(config.max_length, self._job.vocab_size) * config.max_length
        first = tail_table(table_bytes).first_token(unit, split)
        for block, (position, part, begins) in cut_tail(tail, first, block_tokens):
            yield (split, block), (position, part.tobytes(), begins.tobytes())


class PackTails(beam.DoFn):
    """The pieces of a block of tails → where its rows are kept, ranked after all others; and their statistics."""

    def __init__(self, job: Job):
        self._job = job

    def setup(self) -> None:
        self._rows = Metrics.counter("prepare", "rows")
        self._padding = Metrics.counter("prepare", "padding")
        self._reporter = Reporter(self._job.progress)

    def process(
        self, element: tuple[tuple[int, int], Iterable[tuple[int, bytes, bytes]]], table_bytes: bytes
    ) -> Iterator[TaggedOutput]:
        job, ((split, number), parts) = self._job, element
        config, dtype = job.config, id_dtype(job.vocab_size)
        most = rows_per_block(config.max_length, job.vocab_size)
        tokens = int(tail_table(table_bytes).totals[split]) - number * most * config.max_length
        block = pack_pieces(
            ((at, np.frombuffer(ids, dtype), np.frombuffer(starts, np.int64)) for at, ids, starts in parts),
            tokens=min(tokens, most * config.max_length),
            max_length=config.max_length,
            pad_id=job.pad_id,
            keep_starts=job.keep_starts,
            dtype=dtype,
        )
        statistics = SplitStatistics.empty(job.vocab_size)
        statistics.add_rows(block)
        with create_sections(tails_path(job.staging, split, number)) as sections:
            section = sections.add(block.to_bytes())
            sections.end({"fingerprint": job.fingerprint, "tails": [split, number]})
        yield TaggedOutput(BLOCKS, (split, job.num_units, number * most, len(block), *section))
        yield TaggedOutput(STATISTICS, (split, statistics))
        self._rows.inc(len(block))
        self._padding.inc(statistics.padding)
        self._reporter.add("tokenize", 0, of_next=len(block))
