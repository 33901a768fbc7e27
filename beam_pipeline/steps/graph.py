"""The whole pipeline, from the plan's work units to a finished dataset.

    units ─► tokenize ─┬─ rows, in a file of each unit ─────────┬─► write the shards ─► commit
                       ├─ tails ─► pack them, block by block ───┤           ▲             ▲
                       ├─ counts ─► tables of rows and tails ───┴───────────┘             │
                       └─ statistics, counts of excluded records ─────────────────────────┘

If the units' files are local, or documents are not packed, each shard reads its rows from them. Otherwise, in Cloud
Storage, the runner groups rows by shard. Units are also read once each with `--decontaminate`, to find n-grams of
benchmarks, and with `--dedup`, before tokenization: `paragraphs.py` removes paragraphs of many documents, exact
deduplication hashes documents, and `near.py` compares them. With `--resume`, the units and shards that an earlier run
finished are checked and kept. With `--dry_run`, the removed documents are only listed.

Labels of steps never change, since runners show metrics and job graphs by label.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Sequence

from beam_pipeline.dataset.bad_records import Excluded
from beam_pipeline.dataset.finished_units import BlockPlace
from beam_pipeline.dataset.shards import ShardInfo
from beam_pipeline.engines.fallbacks import EngineUse
from beam_pipeline.rows.routing import RowTable
from beam_pipeline.sources.units import WorkUnit, read_plan
from beam_pipeline.steps.decontaminate import decontaminate
from beam_pipeline.steps.deduplicate import (
    DUPLICATES,
    HASHES,
    FindDuplicates,
    HashDocuments,
    join_removals,
    num_buckets,
)
from beam_pipeline.steps.dry_run import FinishDryRun, ListRemoved
from beam_pipeline.steps.job import Job
from beam_pipeline.steps.near import RemoveNearDuplicates
from beam_pipeline.steps.paragraphs import RemoveParagraphs
from beam_pipeline.steps.route import KeptShards, RouteRows, list_shards
from beam_pipeline.steps.tables import (
    KeptTable,
    build_block_table,
    build_kept_table,
    build_row_table,
    build_tail_table,
)
from beam_pipeline.steps.tails import CutTails, PackTails
from beam_pipeline.steps.tokenize import (
    BLOCKS,
    COUNTS,
    EXCLUDED,
    STATISTICS,
    TAILS,
    USES,
    MergeStatistics,
    TokenizeUnit,
)
from beam_pipeline.steps.write import (
    CommitDataset,
    WriteShards,
    write_gathered,
    write_gathered_documents,
    write_grouped,
)
from beam_pipeline.support import filesystem
from beam_pipeline.support import pipelines as beam
from beam_pipeline.support.pipelines import AsIter, AsSingleton, PCollection


def build(pipeline: beam.Pipeline, job: Job) -> None:
    """Adds all of `prepare`'s steps to `pipeline`."""
    units = pipeline | "PlanPath" >> beam.Create([job.plan_path]) | "ReadPlan" >> beam.FlatMap(read_plan)
    build_from_units(units, job)


def build_from_units(units: PCollection[WorkUnit], job: Job) -> None:
    """Adds all steps after the plan.

    Args:
        units: All work units. The files of `job.plan_path` and `job.description_path` exist before any of them.
        job: The run.
    """
    pipeline = units.pipeline
    curated, reports = _curate(units | "SpreadUnits" >> beam.Reshuffle(), job)
    if job.config.dry_run:
        _list_removed(curated, reports, job)
        return
    outputs = (BLOCKS, TAILS, COUNTS, STATISTICS, EXCLUDED, USES)
    tokenized = curated | "Tokenize" >> beam.ParDo(TokenizeUnit(job)).with_outputs(*outputs)
    splits, max_length = len(job.config.splits), job.config.max_length
    counts = tokenized[COUNTS] | "ListCounts" >> beam.combiners.ToList()
    tail_table = counts | "TailTable" >> beam.Map(build_tail_table, job.num_units, splits)
    row_table = counts | "RowTable" >> beam.Map(
        build_row_table, AsSingleton(tail_table), job.num_units, splits, max_length
    )
    tails = (
        tokenized[TAILS]
        | "CutTails" >> beam.ParDo(CutTails(job), AsSingleton(tail_table))
        | "GroupTails" >> beam.GroupByKey()
        | "PackTails" >> beam.ParDo(PackTails(job), AsSingleton(tail_table)).with_outputs(BLOCKS, STATISTICS)
    )
    blocks = (tokenized[BLOCKS], tails[BLOCKS]) | "AllBlocks" >> beam.Flatten()
    kept = _kept_shards(pipeline, job)
    write = _gather if filesystem.is_local(job.output) or job.config.packing == "none" else _group
    written = write(blocks, row_table, kept, job)
    statistics = (
        (tokenized[STATISTICS], tails[STATISTICS])
        | "AllStatistics" >> beam.Flatten()
        | "MergeStatistics" >> beam.CombinePerKey(MergeStatistics(job.vocab_size))
    )
    shards = (written, kept) | "AllShards" >> beam.Flatten()
    excluded = tokenized[EXCLUDED] | "SumExcluded" >> beam.CombineGlobally(_sum_excluded)
    uses = tokenized[USES] | "SumUses" >> beam.CombinePerKey(_sum_uses)
    _ = (
        pipeline
        | "Once" >> beam.Create([None])
        | "Commit"
        >> beam.ParDo(
            CommitDataset(job),
            AsSingleton(row_table),
            AsIter(statistics),
            AsIter(excluded),
            AsIter(uses),
            AsSingleton(tail_table),
            AsIter(shards),
            *reports,
        )
    )


def _list_removed(curated: PCollection[tuple[WorkUnit, bytes]], reports: Sequence[AsIter], job: Job) -> None:
    """Lists the documents that would be removed, instead of making a dataset of the others."""
    excluded = (
        curated
        | "ListRemoved" >> beam.ParDo(ListRemoved(job))
        | "SumExcluded" >> beam.CombineGlobally(_sum_excluded)
    )
    _ = (
        curated.pipeline
        | "Once" >> beam.Create([None])
        | "FinishDryRun" >> beam.ParDo(FinishDryRun(job), AsIter(excluded), *reports)
    )


def _gather(
    blocks: PCollection[BlockPlace],
    row_table: PCollection[RowTable],
    kept: PCollection[ShardInfo],
    job: Job,
) -> PCollection[ShardInfo]:
    """Writes shards whose rows are read from the units' files."""
    write = WriteShards(job, write_gathered_documents if job.config.packing == "none" else write_gathered)
    block_table = (
        blocks
        | "ListBlocks" >> beam.combiners.ToList()
        | "BlockTable" >> beam.Map(build_block_table, AsSingleton(row_table))
    )
    return (
        row_table
        | "ListShards" >> beam.FlatMap(list_shards, AsSingleton(_kept_table(kept)), job)
        | "SpreadShards" >> beam.Reshuffle()
        | "WriteShards" >> beam.ParDo(write, AsSingleton(row_table), AsSingleton(block_table))
    )


def _group(
    blocks: PCollection[BlockPlace],
    row_table: PCollection[RowTable],
    kept: PCollection[ShardInfo],
    job: Job,
) -> PCollection[ShardInfo]:
    """Writes shards whose rows the runner groups."""
    return (
        blocks
        | "Route" >> beam.ParDo(RouteRows(job), AsSingleton(row_table), AsSingleton(_kept_table(kept)))
        | "GroupByShard" >> beam.GroupByKey()
        | "WriteShards" >> beam.ParDo(WriteShards(job, write_grouped), AsSingleton(row_table))
    )


def _kept_table(kept: PCollection[ShardInfo]) -> PCollection[KeptTable]:
    return (
        kept
        | "KeptPlaces" >> beam.Map(lambda info: (info.split, info.shard))
        | "ListKept" >> beam.combiners.ToList()
        | "KeptTable" >> beam.Map(build_kept_table)
    )


def _curate(
    units: PCollection[WorkUnit], job: Job
) -> tuple[PCollection[tuple[WorkUnit, bytes]], list[AsIter]]:
    """Adds the steps that compare documents with benchmarks and with each other.

    Returns:
        The units with their removals, as bytes, and what the last step must wait for.
    """
    reports = []
    if job.config.contamination.decontaminate:
        with_removals, report = decontaminate(units, job)
        reports.append(AsIter(report))
    else:
        with_removals = units | "Unit" >> beam.Map(lambda unit: (unit, b""))
    if job.config.removes_paragraphs:
        with_removals = with_removals | "RemoveParagraphs" >> RemoveParagraphs(job)
    if job.config.document_dedup == "exact":
        hashed = with_removals | "HashDocuments" >> beam.ParDo(
            HashDocuments(job, num_buckets(job.input_bytes))
        ).with_outputs(HASHES, DUPLICATES)
        later_duplicates = (
            hashed[HASHES]
            | "GroupHashes" >> beam.GroupByKey()
            | "FindDuplicates" >> beam.ParDo(FindDuplicates(scored=job.config.prefers))
        )
        duplicates = (hashed[DUPLICATES], later_duplicates) | "AllDuplicates" >> beam.Flatten()
        numbered = with_removals | "NumberUnits" >> beam.Map(lambda element: (element[0].index, element))
        with_removals = (
            {"unit": numbered, DUPLICATES: duplicates}
            | "JoinDuplicates" >> beam.CoGroupByKey()
            | "UnitWithDuplicates" >> beam.Map(join_removals)
        )
    elif job.config.document_dedup == "near":
        with_removals = with_removals | "RemoveNearDuplicates" >> RemoveNearDuplicates(job)
    return with_removals, reports


def _kept_shards(pipeline: beam.Pipeline, job: Job) -> PCollection[ShardInfo]:
    """Returns the intact shards of an earlier run; none without `--resume`."""
    return (
        pipeline
        | "FinishedShards" >> beam.Create([job.finished_folder] if job.config.resume else [])
        | "ListFinished" >> beam.FlatMap(filesystem.list_folder)
        | "SpreadFinished" >> beam.Reshuffle()
        | "CheckFinished" >> beam.ParDo(KeptShards(job))
    )


def _sum_excluded(counts: Iterable[Excluded]) -> Excluded:
    return sum(counts, Excluded())


def _sum_uses(uses: Iterable[EngineUse]) -> EngineUse:
    return functools.reduce(operator.add, uses)
