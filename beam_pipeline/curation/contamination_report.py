"""The report of decontamination: what was found of each benchmark, as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from beam_pipeline.curation.contamination import Decider, Findings
from beam_pipeline.curation.ngram_index import NgramIndex

_MOST_ITEMS = 1000
_MOST_COMMON = 100


def make_report(
    index: NgramIndex,
    findings: Findings,
    common: np.ndarray,
    counts: np.ndarray,
    *,
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """Returns the report.

    Args:
        index: The n-grams of the benchmarks.
        findings: What was found in all documents.
        common: int64, the n-grams that are no evidence because many documents have them.
        counts: int64, the number of documents with each of these.
        options: The options of decontamination, by their names.
    """
    is_public = Decider(index, common, min_share=0).is_public
    findings = Findings.none(len(index.benchmarks)) + findings
    item_ends = np.cumsum(index.item_counts)
    benchmarks = []
    for number, (name, end) in enumerate(zip(index.benchmarks, item_ends.tolist(), strict=True)):
        items = slice(end - int(index.item_counts[number]), end)
        own = (findings.items >= items.start) & (findings.items < end)
        documents = findings.item_documents[own]
        most = np.argsort(-documents, kind="stable")[:_MOST_ITEMS]
        places = findings.items[own][most] - items.start
        benchmarks.append(
            {
                "name": name,
                "items": end - items.start,
                "not_checkable": int((~index.checkable[items]).sum()),
                "public": int(is_public[items].sum()),
                "contained": int(own.sum()),
                "documents": int(findings.documents[number]),
                "documents_by_share": findings.shares[number].tolist(),
                "most_frequent": [
                    {"item": item, "documents": count}
                    for item, count in zip(places.tolist(), documents[most].tolist(), strict=True)
                ],
            }
        )
    order = np.argsort(-counts, kind="stable")[:_MOST_COMMON]
    return {
        "options": dict(options),
        "benchmarks": benchmarks,
        "common_ngrams": [
            {"ngram": index.text_of(ngram).decode(), "documents": count}
            for ngram, count in zip(common[order].tolist(), counts[order].tolist(), strict=True)
        ],
    }


def describe(report: Mapping[str, Any]) -> list[str]:
    """Describes a report for the console, a line for each benchmark."""
    lines = []
    for benchmark in report["benchmarks"]:
        items = f"{benchmark['contained']:,} of {benchmark['items']:,} items in {benchmark['documents']:,} documents"
        notes = [
            f"{benchmark[key]:,} {text}"
            for key, text in (
                ("not_checkable", "too short to be checked"),
                ("public", "public text, not used"),
            )
            if benchmark[key]
        ]
        joined = "; ".join(notes)
        lines.append(f"{benchmark['name']}: {items}{f' ({joined})' if notes else ''}")
    return lines
