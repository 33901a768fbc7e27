"""What `inspect --removed` shows: the counts by rule, and samples."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

from beam_pipeline.curation.removals import PASSAGES
from beam_pipeline.views.reading import FinishedSplit
from beam_pipeline.views.removed import RemovedList, Sample, cut_pieces, differences
from tokenmill_reader.console.escaping import visible

_SHOWN = 400  # characters of a text
_MARKS = {"=": "{}", "-": "[-{}-]", "+": "{{+{}+}}"}


def removed_lines(split: FinishedSplit, rule: str, most: int) -> Iterator[str]:
    """Yields the lines of `inspect --removed`. Raises DataError as `RemovedList`."""
    removed = RemovedList(split, rule)
    for (name, limit), count in sorted(removed.counts.items(), key=lambda item: (-item[1], item[0])):
        yield f"{count:>12,}  {name}{f' ({limit})' if limit else ''}"
    for sample in removed.samples(most):
        yield ""
        yield from _sample_lines(sample)
    if removed.rows > most:
        yield ""
        yield f"… {most} of {removed.rows:,}, evenly spread (--most)"


def _sample_lines(sample: Sample) -> Iterator[str]:
    row = sample.row
    value = "" if math.isnan(row["value"]) else f", value {row['value']:.4g}"
    evidence = {name: part for name, part in sample.evidence.items() if name != "kept"}
    details = f", {json.dumps(evidence, ensure_ascii=False)}" if evidence else ""
    yield visible(f"── {row['path']}, {row['place']}: {row['rule']}{value}{details}", one_line=True)
    if sample.document is None:
        yield "(the source no longer has this document)"
    elif sample.uncut is not None:
        yield visible(_marked(cut_pieces(sample.uncut, sample.evidence[PASSAGES])))
    elif sample.kept is None:
        yield _beginning(sample.document.text)
        if sample.kept_place:
            yield "(the source no longer has the document that was kept)"
    elif sample.kept.text == sample.document.text:
        yield visible(f"equal to {sample.kept.path}, {sample.kept.place}:", one_line=True)
        yield _beginning(sample.kept.text)
    else:
        yield visible(f"[-removed-] {{+kept: {sample.kept.path}, {sample.kept.place}+}}", one_line=True)
        yield visible(_marked(differences(sample.document.text, sample.kept.text)))


def _marked(pieces: Iterable[tuple[str, str]]) -> str:
    return "".join(_MARKS[mark].format(text) for mark, text in pieces)


def _beginning(text: str) -> str:
    return visible(text[:_SHOWN] + "…" * (len(text) > _SHOWN))


def removed_document(split: FinishedSplit, rule: str, most: int) -> dict[str, Any]:
    """Returns the counts and samples as JSON values. Raises DataError as `RemovedList`."""
    removed = RemovedList(split, rule)
    return {
        "counts": [
            {"rule": name, "limit": limit or None, "documents": count}
            for (name, limit), count in sorted(removed.counts.items())
        ],
        "samples": [_sample_document(sample) for sample in removed.samples(most)],
    }


def _sample_document(sample: Sample) -> dict[str, Any]:
    row = {**sample.row, "evidence": sample.evidence}
    row["value"] = None if math.isnan(row["value"]) else row["value"]
    return {
        **row,
        "unit": sample.unit,
        "text": sample.document and sample.document.text,
        "kept": sample.kept and asdict(sample.kept),
    }
