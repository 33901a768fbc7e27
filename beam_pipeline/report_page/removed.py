"""The section of removed documents: by rule, by source and by columns of the records, values, and samples."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from markupsafe import Markup

from beam_pipeline.curation.pii import masked, spans
from beam_pipeline.curation.removals import PASSAGES, PII
from beam_pipeline.report_page.charts import Histogram, histogram_chart
from beam_pipeline.support.errors import DataError
from beam_pipeline.views.reading import FinishedSplit
from beam_pipeline.views.removed import RemovedList, Sample, cut_pieces, differences, mask_pieces, masks_of
from beam_pipeline.views.removed_counts import DOCUMENTS, Groups, RemovedCounts, largest
from tokenmill_reader.console.escaping import visible

_MOST_COMBINATIONS = 12
_MOST_FILES = 200
_MOST_GROUPS = 12
_MOST_RULES = 6  # with a column of their own
_MOST_CHARTS = 6
_FEWEST = 30  # documents in a chart
_BINS = 30
_MOST_SAMPLES = 2  # of a rule
_MOST_BYTES = 64 << 20  # of the source to read again for the samples
_SHOWN = 1200  # characters of a sample


def removed_section(split: FinishedSplit) -> dict[str, Any] | None:
    """Returns the values of the section; None if no rule has removed or edited any document.

    The lists of some evenly spread work units are read; the totals by rule are those of the manifest.
    """
    combinations = dict(split.manifest.get("removed", {}))
    duplicates = split.manifest["excluded"]["duplicate_documents"]
    if duplicates:
        combinations["exact"] = duplicates
    try:
        removed = RemovedList(split, "all", most_files=_MOST_FILES)
    except DataError:  # converted datasets and those of earlier versions have no lists
        removed = None
    edited = split.manifest.get("edited", {})
    if not combinations and not edited and removed is None:
        return None
    return {
        **_totals(combinations),
        "edited": list(edited.items()),
        **(
            {}
            if removed is None
            else _details(removed, masks=PII in split.manifest["config"].get("filter", ()))
        ),
    }


def _totals(combinations: Mapping[str, int]) -> dict[str, list]:
    """Returns the documents that each rule removes, and those that several rules remove, largest first."""
    totals: Counter[str] = Counter()
    for rules, documents in combinations.items():
        totals.update(dict.fromkeys(rules.split("+"), documents))
    together = Counter({rules: documents for rules, documents in combinations.items() if "+" in rules})
    return {
        "by_rule": [
            {"name": name, "documents": documents, "alone": combinations.get(name, 0)}
            for name, documents in totals.most_common()
        ],
        "together": together.most_common(_MOST_COMBINATIONS),
    }


def _details(removed: RemovedList, *, masks: bool) -> dict[str, Any]:
    """Returns the details. With `masks`, they have no personal data, since reports are shown to others."""
    counts, shown = removed.counts, _masked if masks else str
    groups = {"source": counts.by_source, **counts.by_column}
    samples = removed.samples_by_rule(_MOST_SAMPLES, _MOST_BYTES)
    return {
        "lists": removed.files,
        "lists_read": min(removed.files, _MOST_FILES),
        "tables": [_table(name, group, counts, shown) for name, group in groups.items() if len(group) > 1],
        "charts": list(_charts(counts)),
        "samples": [_sample(sample, shown) for rule in sorted(samples) for sample in samples[rule]],
    }


def _table(name: str, groups: Groups, counts: RemovedCounts, shown: Callable[[str], str]) -> dict[str, Any]:
    """Returns the rows of a table of groups, whose names it passes through `shown`, and the most frequent rules."""
    totals: Counter[str] = Counter()
    for (rule, _), documents in counts.by_limit.items():
        totals[rule] += documents
    rules = [rule for rule, _ in totals.most_common(_MOST_RULES)]
    rows = [
        {
            "name": shown(group)[:_SHOWN],
            "documents": of_group[DOCUMENTS],
            "rules": [of_group[rule] for rule in rules],
        }
        for group, of_group in largest(groups, _MOST_GROUPS)
    ]
    return {"name": name, "rules": rules, "rows": rows, "others": len(groups) - len(rows)}


def _charts(counts: RemovedCounts) -> Iterator[tuple[str, Markup]]:
    """Yields the titles and histograms of the values of the most frequent rules."""
    shown = 0
    for (rule, limit), documents, edges in counts.histograms(_BINS):
        if shown < _MOST_CHARTS and documents.sum() >= _FEWEST:
            shown += 1
            title = f"{rule} ({limit})" if limit else rule
            histogram = Histogram(title, edges.tolist(), documents.tolist())
            yield title, histogram_chart([histogram], x_label="value of the rule", unit="documents")


def _sample(sample: Sample, shown: Callable[[str], str]) -> dict[str, Any]:
    """Returns the values of a sample, whose texts it passes through `shown`."""
    row = sample.row
    evidence = {name: part for name, part in sample.evidence.items() if name != "kept"}
    details = [f"value {row['value']:.4g}"] if math.isfinite(row["value"]) else []
    details += [
        shown(json.dumps(part, ensure_ascii=False))[:_SHOWN] for part in (evidence, sample.columns) if part
    ]
    return {
        "rule": row["rule"],
        "place": f"{row['path']}, {row['place']}",
        "details": ", ".join(details),
        "kept": sample.kept and f"{sample.kept.path}, {sample.kept.place}",
        "pieces": list(_pieces(sample, shown)),
    }


def _masked(text: str) -> str:
    return masked(text, spans(text))


def _pieces(sample: Sample, shown: Callable[[str], str]) -> Iterator[tuple[str, str]]:
    """Yields the beginning of a sample's text as pieces (mark, text), as `differences` does."""
    if sample.document is None:
        return
    pieces = [("=", shown(sample.document.text))]
    if masks_of(sample):
        # All that looks like personal data, also what the run removed otherwise.
        masks = mask_pieces(sample.document.text, spans(sample.document.text))
        pieces = [piece for piece in masks if piece[0] != "-"]
    elif sample.uncut is not None:
        pieces = [(mark, shown(text)) for mark, text in cut_pieces(sample.uncut, sample.evidence[PASSAGES])]
    elif sample.kept is not None and sample.kept.text != sample.document.text:
        pieces = list(differences(shown(sample.document.text), shown(sample.kept.text)))
    left = _SHOWN
    for mark, text in pieces:
        if left > 0:
            yield mark, visible(text[:left] + "…" * (len(text) > left))
        left -= len(text)
