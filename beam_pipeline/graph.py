"""The whole pipeline: the plan's work units in, a finished dataset out.

    units ─► tokenize ─┬─ blocks of rows ──────────────────┬─► route ─► group by shard ─► write ─► commit
                       ├─ tails ─► pack the tails ─────────┘     ▲                                   ▲
                       ├─ row counts ─► row table ───────────────┘                                   │
                       └─ statistics, counts of what was left out ───────────────────────────────────┘

With `--dedup exact` the units are read once before, for their documents' hashes; with `--resume` the shards that an
earlier run finished are checked first, and no rows are routed to them.

Every label is stable: it is what a runner's metrics and job graph show.
"""

from __future__ import annotations

from collections.abc import Iterable

import apache_beam as beam
from apache_beam.pvalue import AsIter, AsSingleton, DoOutputsTuple, PCollection

from beam_pipeline.bad_records import Excluded
from beam_pipeline.dataset.shards import ShardInfo
from beam_pipeline.filesystem import list_folder
from beam_pipeline.job import Job
from beam_pipeline.steps.deduplicate import FindDuplicates, HashDocuments, num_buckets
from beam_pipeline.steps.tokenize import (
    BLOCKS,
    EXCLUDED,
    ROW_COUNTS,
    STATISTICS,
    TAIL_SIZES,
    TAILS,
    MergeStatistics,
    PackTails,
    ReadPlan,
    TokenizeUnit,
)
from beam_pipeline.steps.write import CommitDataset, KeptShards, RouteRows, WriteShard, build_row_table


def build(pipeline: beam.Pipeline, job: Job) -> None:
    """Adds all of `prepare`'s steps to `pipeline`."""
    units = (
        pipeline
        | "PlanPath" >> beam.Create([job.plan_path])
        | "ReadPlan" >> beam.ParDo(ReadPlan())
        | "SpreadUnits" >> beam.Reshuffle()
    )
    tokenized = _tokenized(units, job)
    tails = (
        tokenized[TAILS]
        | "GroupTails" >> beam.GroupByKey()
        | "PackTails" >> beam.ParDo(PackTails(job)).with_outputs(BLOCKS, ROW_COUNTS, STATISTICS, TAIL_SIZES)
    )
    row_table = (
        (tokenized[ROW_COUNTS], tails[ROW_COUNTS])
        | "AllRowCounts" >> beam.Flatten()
        | "ListRowCounts" >> beam.combiners.ToList()
        | "RowTable" >> beam.Map(build_row_table, job.num_units, len(job.config.splits))
    )
    kept = _kept_shards(pipeline, job)
    written = (
        (tokenized[BLOCKS], tails[BLOCKS])
        | "AllBlocks" >> beam.Flatten()
        | "Route" >> beam.ParDo(RouteRows(job), AsSingleton(row_table), AsIter(kept))
        | "GroupByShard" >> beam.GroupByKey()
        | "WriteShards" >> beam.ParDo(WriteShard(job), AsSingleton(row_table))
    )
    statistics = (
        (tokenized[STATISTICS], tails[STATISTICS])
        | "AllStatistics" >> beam.Flatten()
        | "MergeStatistics" >> beam.CombinePerKey(MergeStatistics(job.vocab_size))
    )
    shards = (written, kept) | "AllShards" >> beam.Flatten()
    excluded = tokenized[EXCLUDED] | "SumExcluded" >> beam.CombineGlobally(_sum)
    _ = (
        pipeline
        | "Once" >> beam.Create([None])
        | "Commit"
        >> beam.ParDo(
            CommitDataset(job),
            AsSingleton(row_table),
            AsIter(statistics),
            AsIter(excluded),
            AsIter(tails[TAIL_SIZES]),
            AsIter(shards),
        )
    )


def _tokenized(units: PCollection, job: Job) -> DoOutputsTuple:
    """The units' rows and all that is counted of them."""
    if job.config.dedup == "exact":
        duplicates = (
            units
            | "HashDocuments" >> beam.ParDo(HashDocuments(job, num_buckets(job.input_bytes)))
            | "GroupHashes" >> beam.GroupByKey()
            | "FindDuplicates" >> beam.ParDo(FindDuplicates())
        )
        joined = (
            {"line": units, "duplicates": duplicates}
            | "JoinDuplicates" >> beam.CoGroupByKey()
            | "UnitWithDuplicates"
            >> beam.MapTuple(lambda unit, found: (unit, *found["line"], sorted(found["duplicates"])))
        )
    else:
        joined = units | "Unit" >> beam.MapTuple(lambda unit, line: (unit, line, []))
    outputs = (BLOCKS, TAILS, ROW_COUNTS, STATISTICS, EXCLUDED)
    return joined | "Tokenize" >> beam.ParDo(TokenizeUnit(job)).with_outputs(*outputs)


def _kept_shards(pipeline: beam.Pipeline, job: Job) -> PCollection[ShardInfo]:
    """With `--resume`, the shards that an earlier run finished and that are still as it left them."""
    return (
        pipeline
        | "FinishedShards" >> beam.Create([job.finished_folder] if job.config.resume else [])
        | "ListFinished" >> beam.FlatMap(list_folder)
        | "SpreadFinished" >> beam.Reshuffle()
        | "CheckFinished" >> beam.ParDo(KeptShards(job))
    )


def _sum(counts: Iterable[Excluded]) -> Excluded:
    return sum(counts, Excluded())
