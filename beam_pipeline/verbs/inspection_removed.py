"""What `inspect --removed` shows: the counts by rule, and samples."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

from beam_pipeline.curation.removals import PASSAGES
from beam_pipeline.views.reading import FinishedSplit
from beam_pipeline.views.removed import RemovedList, Sample, cut_pieces, differences, mask_pieces, masks_of
from beam_pipeline.views.removed_counts import DOCUMENTS, Groups, largest
from tokenmill_reader.console.escaping import visible

_SHOWN = 400  # characters of a text
_MOST_GROUPS = 10
_MARKS = {"=": "{}", "-": "[-{}-]", "+": "{{+{}+}}"}


def removed_lines(split: FinishedSplit, rule: str, most: int) -> Iterator[str]:
    """Yields the lines of `inspect --removed`. Raises DataError as `RemovedList`."""
    removed = RemovedList(split, rule)
    counts = removed.counts
    for (name, limit), count in sorted(counts.by_limit.items(), key=lambda item: (-item[1], item[0])):
        yield f"{count:>12,}  {name}{f' ({limit})' if limit else ''}"
    yield from _group_lines("source", counts.by_source)
    for column, groups in counts.by_column.items():
        yield from _group_lines(column, groups)
    for sample in removed.samples(most):
        yield ""
        yield from _sample_lines(sample)
    if removed.rows > most:
        yield ""
        yield f"… {most} of {removed.rows:,}, evenly spread (--most)"


def _group_lines(name: str, groups: Groups) -> Iterator[str]:
    """Yields the documents of the largest groups, and of each rule within them, if there are several groups."""
    if len(groups) < 2:
        return
    yield f"by {name}:"
    for group, counts in largest(groups, _MOST_GROUPS):
        rules = [f"{rule} {count:,}" for rule, count in sorted(counts.items()) if rule != DOCUMENTS]
        yield visible(f"{counts[DOCUMENTS]:>12,}  {group[:_SHOWN]}: {', '.join(rules)}", one_line=True)
    if len(groups) > _MOST_GROUPS:
        yield f"{'…':>12}  and {len(groups) - _MOST_GROUPS:,} others"


def _sample_lines(sample: Sample) -> Iterator[str]:
    row = sample.row
    value = "" if math.isnan(row["value"]) else f", value {row['value']:.4g}"
    evidence = {name: part for name, part in sample.evidence.items() if name != "kept"}
    details = "".join(
        f", {json.dumps(part, ensure_ascii=False)}" for part in (evidence, sample.columns) if part
    )
    yield visible(f"── {row['path']}, {row['place']}: {row['rule']}{value}{details}", one_line=True)
    if sample.document is None:
        yield "(the source no longer has this document)"
    elif masked := masks_of(sample):
        yield _marked(mask_pieces(sample.document.text, masked))
    elif sample.uncut is not None:
        yield _marked(cut_pieces(sample.uncut, sample.evidence[PASSAGES]))
    elif sample.kept is None:
        yield _beginning(sample.document.text)
        if sample.kept_place:
            yield "(the source no longer has the document that was kept)"
    elif sample.kept.text == sample.document.text:
        yield visible(f"equal to {sample.kept.path}, {sample.kept.place}:", one_line=True)
        yield _beginning(sample.kept.text)
    else:
        yield visible(f"[-removed-] {{+kept: {sample.kept.path}, {sample.kept.place}+}}", one_line=True)
        yield _marked(differences(sample.document.text, sample.kept.text))


def _marked(pieces: Iterable[tuple[str, str]]) -> str:
    return visible("".join(_MARKS[mark].format(text) for mark, text in pieces))


def _beginning(text: str) -> str:
    return visible(text[:_SHOWN] + "…" * (len(text) > _SHOWN))


def removed_document(split: FinishedSplit, rule: str, most: int) -> dict[str, Any]:
    """Returns the counts and samples as JSON values. Raises DataError as `RemovedList`."""
    removed = RemovedList(split, rule)
    by_column = {name: _group_document(groups) for name, groups in removed.counts.by_column.items()}
    return {
        "counts": [
            {"rule": name, "limit": limit or None, "documents": count}
            for (name, limit), count in sorted(removed.counts.by_limit.items())
        ],
        "by_source": _group_document(removed.counts.by_source),
        **({"by_column": by_column} if by_column else {}),
        "samples": [_sample_document(sample) for sample in removed.samples(most)],
    }


def _group_document(groups: Groups) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "documents": counts[DOCUMENTS],
            "rules": {rule: count for rule, count in sorted(counts.items()) if rule != DOCUMENTS},
        }
        for name, counts in largest(groups, len(groups))
    ]


def _sample_document(sample: Sample) -> dict[str, Any]:
    row = {**sample.row, "evidence": sample.evidence}
    row["value"] = None if math.isnan(row["value"]) else row["value"]
    return {
        **row,
        **({"columns": sample.columns} if sample.columns else {}),
        "unit": sample.unit,
        "text": sample.document and sample.document.text,
        "kept": sample.kept and asdict(sample.kept),
    }
