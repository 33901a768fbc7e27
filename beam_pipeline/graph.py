"""The whole pipeline: the plan's work units in, a finished dataset out.

    units ─► tokenize ─┬─ blocks of rows ──────────────────┬─► route ─► group by shard ─► write ─► commit
                       ├─ tails ─► pack the tails ─────────┘     ▲                                   ▲
                       └─ row counts ─► row table ───────────────┘        statistics ────────────────┘

Every label is stable: it is what a runner's metrics and job graph show.
"""

from __future__ import annotations

import apache_beam as beam
from apache_beam.pvalue import AsIter, AsSingleton

from beam_pipeline.job import Job
from beam_pipeline.steps import (
    BLOCKS,
    ROW_COUNTS,
    STATISTICS,
    TAILS,
    CommitDataset,
    MergeStatistics,
    PackTails,
    ReadPlan,
    RouteRows,
    TokenizeUnit,
    WriteShard,
    build_row_table,
)


def build(pipeline: beam.Pipeline, job: Job) -> None:
    """Adds all of `prepare`'s steps to `pipeline`."""
    units = (
        pipeline
        | "PlanPath" >> beam.Create([job.plan_path])
        | "ReadPlan" >> beam.ParDo(ReadPlan())
        | "SpreadUnits" >> beam.Reshuffle()
    )
    outputs = (BLOCKS, TAILS, ROW_COUNTS, STATISTICS)
    tokenized = units | "Tokenize" >> beam.ParDo(TokenizeUnit(job)).with_outputs(*outputs)
    tails = (
        tokenized[TAILS]
        | "GroupTails" >> beam.GroupByKey()
        | "PackTails" >> beam.ParDo(PackTails(job)).with_outputs(BLOCKS, ROW_COUNTS, STATISTICS)
    )
    row_table = (
        (tokenized[ROW_COUNTS], tails[ROW_COUNTS])
        | "AllRowCounts" >> beam.Flatten()
        | "ListRowCounts" >> beam.combiners.ToList()
        | "RowTable" >> beam.Map(build_row_table, job.num_units, len(job.config.splits))
    )
    shards = (
        (tokenized[BLOCKS], tails[BLOCKS])
        | "AllBlocks" >> beam.Flatten()
        | "Route" >> beam.ParDo(RouteRows(job), AsSingleton(row_table))
        | "GroupByShard" >> beam.GroupByKey()
        | "WriteShards" >> beam.ParDo(WriteShard(job), AsSingleton(row_table))
    )
    statistics = (
        (tokenized[STATISTICS], tails[STATISTICS])
        | "AllStatistics" >> beam.Flatten()
        | "MergeStatistics" >> beam.CombinePerKey(MergeStatistics(job.vocab_size))
    )
    _ = (
        pipeline
        | "Once" >> beam.Create([None])
        | "Commit"
        >> beam.ParDo(CommitDataset(job), AsSingleton(row_table), AsIter(statistics), AsIter(shards))
    )
