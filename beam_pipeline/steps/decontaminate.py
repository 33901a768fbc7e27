"""Decontamination: finds the documents that contain items of benchmarks.

    units ─► find n-grams, in a file of each unit ─┬─► decide ─► removals of each unit
                     │                             │      │
                     └─ count documents by n-gram ─┘      └─► report

An n-gram of many documents is common text. So the documents with each are counted over the whole corpus first. What is
counted is a number for each n-gram of the benchmarks at most, however large the corpus is.

Costs for 10 TB of text, in 298,000 units, and 10 million n-grams in 153 blocks: searching takes 27 MB/s of a core, 103
hours. If a unit has 1,000 different n-grams, it sends 16 kB to at most 153 blocks: 5 GB in total, less what workers
combine. The largest group is a block, whose sum has at most 1 MiB.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from beam_pipeline.curation.contamination import (
    MATCH,
    NO_MATCHES,
    Decider,
    documents_with,
    find_matches,
)
from beam_pipeline.curation.contamination_report import Findings, make_report
from beam_pipeline.curation.ngram_index import NgramIndex
from beam_pipeline.dataset.finished_units import identity_of, matches_path
from beam_pipeline.dataset.removed_documents import REPORT_PATH
from beam_pipeline.dataset.sections import Section, create_sections, read_if_intact, read_section
from beam_pipeline.dataset.text_checksums import TextChecksums
from beam_pipeline.sources.units import WorkUnit
from beam_pipeline.steps.curate import Curation, compared_texts, curated_batches, index_of_texts
from beam_pipeline.steps.job import Job
from beam_pipeline.support import filesystem
from beam_pipeline.support import pipelines as beam
from beam_pipeline.support.pipelines import AsIter, Metrics, PCollection, TaggedOutput
from tokenmill_reader.format.json_text import json_bytes

_COUNTS, _REMOVALS, _FINDINGS = "counts", "removals", "findings"

_BLOCK = 1 << 16  # n-grams whose documents are counted together

NgramCounts = tuple[bytes, bytes]
"""Numbers of n-grams, ascending, and the number of documents with each, as int64."""


def decontaminate(
    units: PCollection[WorkUnit], job: Job
) -> tuple[PCollection[tuple[WorkUnit, bytes]], PCollection[None]]:
    """Adds the steps.

    Returns:
        The units, each with its removals as bytes, and an element that exists when the report is written.
    """
    matched = units | "FindNgrams" >> beam.ParDo(FindNgrams(job)).with_outputs(_COUNTS, main="units")
    common = (
        matched[_COUNTS]
        | "CountDocuments" >> beam.CombinePerKey(SumCounts())
        | "CommonNgrams" >> beam.Map(common_ngrams, job.config.contamination.decontaminate_common)
    )
    decided = (
        matched["units"]
        | "SpreadMatched" >> beam.Reshuffle()
        | "Decontaminate"
        >> beam.ParDo(Decontaminate(job), AsIter(common)).with_outputs(_FINDINGS, main=_REMOVALS)
    )
    report = (
        decided[_FINDINGS]
        | "SumFindings" >> beam.CombineGlobally(_sum_findings)
        | "ReportContamination" >> beam.Map(write_report, AsIter(common), job)
    )
    return decided[_REMOVALS], report


@lru_cache(maxsize=1)
def _load_index(path: str) -> NgramIndex:
    return NgramIndex.from_bytes(filesystem.read_bytes(path))


class FindNgrams(beam.DoFn):
    """A unit → the same unit, and the number of its documents with each n-gram of a benchmark, by block.

    The matches are stored in a file. Another attempt that finds this file intact does not read the text again.
    """

    def __init__(self, job: Job):
        self._job = job

    def setup(self) -> None:
        self._curation = Curation(self._job.config)
        self._matches = Metrics.counter("prepare", "ngrams_matched")

    def process(self, unit: WorkUnit) -> Iterator[Any]:
        matches = unit_matches(self._job, self._curation, unit)
        self._matches.inc(len(matches))
        ngrams, counts = documents_with(matches)
        for block in np.unique(ngrams // _BLOCK).tolist():
            span = slice(*np.searchsorted(ngrams, [block * _BLOCK, (block + 1) * _BLOCK]))
            yield TaggedOutput(_COUNTS, (block, (ngrams[span].tobytes(), counts[span].tobytes())))
        yield unit


def unit_matches(job: Job, curation: Curation, unit: WorkUnit) -> np.ndarray:
    """Finds the n-grams of benchmarks in a unit, unless another attempt has stored them: `MATCH` [matches]."""
    path = matches_path(job.staging, unit.index)
    identity = identity_of(job.fingerprint, unit)
    stored = read_if_intact(
        path, identity, lambda file, index: read_section(file, Section(*index["matches"]), path)
    )
    if stored is not None:
        return np.frombuffer(stored, MATCH)
    index, checksums, parts = _load_index(job.ngram_index_path), TextChecksums(), [NO_MATCHES]
    with_places = job.config.contamination.decontaminate_remove == "passage"
    for curated in curated_batches(unit, curation, checksums):
        matches = find_matches(compared_texts(curated.batch, job.config), index, with_places=with_places)
        matches["document"] = curated.numbers[matches["document"]]
        parts.append(matches)
    all_matches = np.concatenate(parts)
    entries = index_of_texts(job, unit, path, identity, checksums)
    with create_sections(path) as sections:
        section = sections.add(all_matches.tobytes())
        sections.end({**entries, "matches": section})
        job.check_lock()  # the file appears at the end of this block
    return all_matches


class SumCounts(beam.CombineFn):
    """Adds up the counts of the n-grams of a block. As a combiner, it does so on the workers before any shuffle."""

    def create_accumulator(self) -> NgramCounts:
        return b"", b""

    def add_input(self, accumulator: NgramCounts, element: NgramCounts) -> NgramCounts:
        return self.merge_accumulators([accumulator, element])

    def merge_accumulators(self, accumulators: Iterable[NgramCounts]) -> NgramCounts:
        ngrams, counts = _concatenate(accumulators)
        distinct, places = np.unique(ngrams, return_inverse=True)
        sums = np.zeros(len(distinct), np.int64)
        np.add.at(sums, places, counts)
        return distinct.tobytes(), sums.tobytes()

    def extract_output(self, accumulator: NgramCounts) -> NgramCounts:
        return accumulator


def common_ngrams(element: tuple[int, NgramCounts], most_documents: int) -> NgramCounts:
    """Returns those n-grams of a block that more than `most_documents` documents have."""
    ngrams, counts = _concatenate([element[1]])
    is_common = counts > most_documents
    return ngrams[is_common].tobytes(), counts[is_common].tobytes()


def merge_common(blocks: Iterable[NgramCounts]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the common n-grams of all blocks, ascending, and their numbers of documents: int64."""
    ngrams, counts = _concatenate(blocks)
    order = np.argsort(ngrams)
    return ngrams[order], counts[order]


def _concatenate(parts: Iterable[NgramCounts]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the n-grams and the counts of all parts: int64."""
    sides = tuple(zip(*parts, strict=True)) or ((), ())
    ngrams, counts = (np.frombuffer(b"".join(side), np.int64) for side in sides)
    return ngrams, counts


class Decontaminate(beam.DoFn):
    """A unit → the unit with its removals as bytes, and what was found in it."""

    def __init__(self, job: Job):
        self._job = job

    def setup(self) -> None:
        self._curation = Curation(self._job.config)
        self._decider: tuple[bytes, Decider] | None = None

    def process(self, unit: WorkUnit, blocks: Iterable[NgramCounts]) -> Iterator[Any]:
        job = self._job
        common, _ = merge_common(blocks)
        if self._decider is None or self._decider[0] != common.tobytes():
            index = _load_index(job.ngram_index_path)
            decider = Decider(
                index,
                common,
                min_share=job.config.contamination.decontaminate_share,
                cuts_passages=job.config.contamination.decontaminate_remove == "passage",
            )
            self._decider = common.tobytes(), decider
        matches = unit_matches(job, self._curation, unit)
        decisions = self._decider[1].decide(matches)
        yield unit, decisions.removals.to_bytes()
        yield TaggedOutput(_FINDINGS, decisions.findings)


def _sum_findings(findings: Iterable[Findings]) -> Findings:
    return sum(findings, Findings.none())


def write_report(findings: Findings, blocks: Iterable[NgramCounts], job: Job) -> None:
    """Writes the report of what was found in the corpus."""
    index = _load_index(job.ngram_index_path)
    common, counts = merge_common(blocks)
    report = make_report(index, findings, common, counts, options=job.config.contamination.identity())
    job.write(filesystem.join(job.output, REPORT_PATH), json_bytes(report))
