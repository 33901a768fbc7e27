"""The steps of near-deduplication, from units to units with the documents that are removed from each.

See `near_duplicates` for what they do, and what they cost.
"""

from __future__ import annotations

from beam_pipeline.sources.units import WorkUnit
from beam_pipeline.steps.deduplicate import FindDuplicates, num_buckets
from beam_pipeline.steps.job import Job
from beam_pipeline.steps.near_clusters import (
    ROOTS,
    ChooseKept,
    FindRoots,
    decide,
    join_removed,
    num_partitions,
    num_rounds,
)
from beam_pipeline.steps.near_duplicates import (
    BANDS,
    DECIDED,
    EQUALS,
    HASHES,
    PAIRS,
    ProposePairs,
    SendBands,
    SketchDocuments,
    num_band_buckets,
)
from beam_pipeline.steps.near_similarity import (
    LINKS,
    REQUESTS,
    SIMILAR,
    Compare,
    CompareLocally,
    RequestSets,
    SendSets,
)
from beam_pipeline.support import filesystem
from beam_pipeline.support import pipelines as beam
from beam_pipeline.support.pipelines import DoOutputsTuple, PCollection


class RemoveNearDuplicates(beam.PTransform):
    """Units and their earlier removals → units with these and those of near-duplicates (`Removals.to_bytes`)."""

    def __init__(self, job: Job):
        self._job = job

    def expand(self, units: PCollection[tuple[WorkUnit, bytes]]) -> PCollection[tuple[WorkUnit, bytes]]:
        job = self._job
        numbered = units | "NumberUnits" >> beam.Map(lambda element: (element[0].index, element))
        sketched = units | "SketchDocuments" >> beam.ParDo(
            SketchDocuments(job, num_buckets(job.input_bytes))
        ).with_outputs(HASHES, DECIDED)
        equal = (
            sketched[HASHES]
            | "GroupKeys" >> beam.GroupByKey()
            | "FindEqualSets" >> beam.ParDo(FindDuplicates(scored=job.config.prefers))
        )
        sent = (
            {"unit": numbered, "equal": equal}
            | "JoinEqualSets" >> beam.CoGroupByKey()
            | "SendBands"
            >> beam.ParDo(SendBands(job, num_band_buckets(job.input_bytes))).with_outputs(
                BANDS, PAIRS, EQUALS
            )
        )
        proposed = (
            sent[BANDS] | "GroupBands" >> beam.GroupByKey() | "ProposePairs" >> beam.ParDo(ProposePairs())
        )
        pairs = (sent[PAIRS], proposed) | "AllPairs" >> beam.Flatten() | "GroupPairs" >> beam.GroupByKey()
        compared = self._compare(pairs)
        partitions = num_partitions(job.input_bytes)
        roots = compared[LINKS] | FindRoots(
            partitions, num_rounds(job.input_bytes), with_roots=job.config.prefers
        )
        if job.config.prefers:
            roots = roots | ChooseKept(job, partitions)
        decided = (
            {ROOTS: roots, SIMILAR: compared[SIMILAR], EQUALS: sent[EQUALS]}
            | "JoinSimilar" >> beam.CoGroupByKey()
            | "Decide" >> beam.FlatMap(decide)
        )
        all_decided = (sketched[DECIDED], decided) | "AllDecided" >> beam.Flatten()
        return (
            {"unit": numbered, DECIDED: all_decided}
            | "JoinRemoved" >> beam.CoGroupByKey()
            | "UnitWithRemoved" >> beam.Map(join_removed)
        )

    def _compare(self, pairs: PCollection) -> DoOutputsTuple:
        """Computes similarities, by the files of other units if they are local, or by sending sets."""
        job, partitions = self._job, num_partitions(self._job.input_bytes)
        if filesystem.is_local(job.output):
            return pairs | "Compare" >> beam.ParDo(CompareLocally(job, partitions)).with_outputs(
                LINKS, SIMILAR
            )
        requested = pairs | "RequestSets" >> beam.ParDo(RequestSets()).with_outputs(PAIRS, REQUESTS)
        sets = (
            requested[REQUESTS]
            | "GroupRequests" >> beam.GroupByKey()
            | "SendSets" >> beam.ParDo(SendSets(job))
        )
        return (
            {PAIRS: requested[PAIRS], "sets": sets}
            | "JoinSets" >> beam.CoGroupByKey()
            | "Compare" >> beam.ParDo(Compare(job, partitions)).with_outputs(LINKS, SIMILAR)
        )
