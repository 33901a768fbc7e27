"""Shows removed documents: how many each rule removed and why, and samples, whose text the source still has."""

from __future__ import annotations

import difflib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from beam_pipeline.curation.removals import PARAGRAPHS, PASSAGES, PASSAGES_RULE, Removals
from beam_pipeline.dataset import removed_documents
from beam_pipeline.dataset.removed_documents import read_removed, removed_path
from beam_pipeline.options.curation_options import CurationConfig
from beam_pipeline.sources.reading import read_unit
from beam_pipeline.sources.units import DocumentBatch, WorkUnit
from beam_pipeline.steps.curate import cut_passages, edit, make_decisions
from beam_pipeline.support import filesystem
from beam_pipeline.support.errors import DataError
from beam_pipeline.views.reading import FinishedSplit
from beam_pipeline.views.tracing import input_options

_WORDS = re.compile(r"\S+\s*")
_PIECES = re.compile(r"^\s+|\S+\s*")
_SHOWN_EQUAL = 8  # words on each side of a difference
_MOST_WORDS = 5000  # of a text that is compared: the time grows with the square
_UNIT = re.compile(r"unit-(\d+)\.parquet$")

Place = tuple[int, int]
"""A document: the number of its unit, and its number in the unit."""


@dataclass(frozen=True)
class ReadDocument:
    """A document as the source has it."""

    path: str
    place: int
    text: str


@dataclass
class Sample:
    """A removed document."""

    unit: int
    row: dict[str, Any]
    """Its row in the list of removed documents."""
    evidence: dict[str, Any] = field(default_factory=dict)
    document: ReadDocument | None = None
    """None if the source no longer has it."""
    kept: ReadDocument | None = None
    """The document that is kept instead, if the evidence names one as `kept`: [unit, number]."""
    uncut: str | None = None
    """If only passages are removed: the text that has them, after the edits of filters and of earlier rules."""

    @property
    def kept_place(self) -> Place | None:
        kept = self.evidence.get("kept")
        return (kept[0], kept[1]) if isinstance(kept, list) and len(kept) == 2 else None


class RemovedList:
    """The list of removed documents of a dataset.

    Args:
        split: Any of its splits.
        rule: The rule to show; "all": every rule. A rule `near` also has those named `near.…`.

    Raises:
        DataError: If no document was removed by this rule.
    """

    def __init__(self, split: FinishedSplit, rule: str):
        self._split, self._rule = split, rule
        self._sizes: dict[str, int] = {}
        self.counts: Counter[tuple[str, str]] = Counter()
        """The number of documents of each (rule, limit); the limit is "" if the evidence has none."""
        rules: set[str] = set()
        for path in filesystem.list_folder(filesystem.join(split.dataset, removed_documents.FOLDER)):
            if _UNIT.search(path):
                table = self._read(path, ["rule", "evidence"])
                rules |= set(table["rule"].unique().to_pylist())
                table = self._selected(table)
                self._sizes[path] = len(table)
                self.counts.update(_counts(table))
        if not self.counts:
            known = (
                f"rules that did: {', '.join(sorted(rules))}"
                if rules
                else "the dataset lists no removed documents"
            )
            raise DataError(f"--removed {rule}: no document was removed by it; {known}")

    @property
    def rows(self) -> int:
        """The number of pairs of a document and a rule."""
        return sum(self._sizes.values())

    def samples(self, most: int) -> list[Sample]:
        """Returns up to `most` removed documents, evenly spread over the list, with their texts."""
        wanted = np.unique(np.linspace(0, self.rows - 1, min(most, self.rows)).astype(np.int64))
        samples, before = [], 0
        for path, size in self._sizes.items():
            numbers = wanted[(wanted >= before) & (wanted < before + size)] - before
            if len(numbers):
                for row in self._selected(self._read(path, None)).take(pa.array(numbers)).to_pylist():
                    unit = int(_UNIT.search(path)[1])
                    samples.append(Sample(unit, row, json.loads(row["evidence"])))
            before += size
        places = {(sample.unit, sample.row["document"]) for sample in samples}
        places |= {sample.kept_place for sample in samples if sample.kept_place}
        documents = self._documents(places)
        for sample in samples:
            document = documents.get((sample.unit, sample.row["document"]))
            is_same = document and (document.path, document.place) == (
                sample.row["path"],
                sample.row["place"],
            )
            sample.document = document if is_same else None
            sample.kept = documents.get(sample.kept_place) if sample.kept_place else None
        self._add_uncut([sample for sample in samples if sample.document and PASSAGES in sample.evidence])
        return samples

    def _add_uncut(self, samples: Sequence[Sample]) -> None:
        """Edits the texts of documents as the run did before it cut passages."""
        by_place = {(sample.unit, sample.row["document"]): sample for sample in samples}
        curation = CurationConfig.of_manifest(self._split.manifest["config"])
        decisions = make_decisions(curation, edits_only=True)
        for unit, read, first, numbers in self._batches(by_place, curation.columns):
            batch, _ = edit(unit, read, first, decisions)
            listed = read_removed(removed_path(self._split.dataset, unit.index)) or Removals.empty()
            in_batch = listed.between(first, first + len(read.texts)).shifted(-first)
            after_benchmarks, _ = cut_passages(batch, in_batch.of_rules([PASSAGES_RULE]))
            for number in numbers:
                sample = by_place[unit.index, number]
                is_later = sample.row["rule"] == PARAGRAPHS
                sample.uncut = (after_benchmarks if is_later else batch).texts[number - first]

    def _read(self, path: str, columns: list[str] | None) -> pa.Table:
        try:
            with filesystem.open_file(path) as file:
                return pq.read_table(file, columns=columns)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{path}: cannot be read: {error}") from error

    def _selected(self, table: pa.Table) -> pa.Table:
        if self._rule == "all":
            return table
        is_rule = pc.equal(table["rule"], self._rule)
        return table.filter(pc.or_(is_rule, pc.starts_with(table["rule"], f"{self._rule}.")))

    def _documents(self, places: Iterable[Place]) -> dict[Place, ReadDocument]:
        """Reads documents again. Those of missing files are absent."""
        result: dict[Place, ReadDocument] = {}
        for unit, batch, first, numbers in self._batches(places):
            for number in numbers:
                place, text = int(batch.places[number - first]), batch.texts[number - first]
                result[unit.index, number] = ReadDocument(unit.root + batch.name, place, text)
        return result

    def _batches(
        self, places: Iterable[Place], columns: Sequence[str] = ()
    ) -> Iterator[tuple[WorkUnit, DocumentBatch, int, list[int]]]:
        """Yields the batches with documents, each with its unit, the number of its first document, and theirs."""
        numbers_of: dict[int, list[int]] = {}
        for unit, number in sorted(places):
            numbers_of.setdefault(unit, []).append(number)
        options = input_options(self._split)
        for index, numbers in numbers_of.items():
            unit, first = self._split.units[index], 0
            try:
                for batch in read_unit(unit, options, columns=columns):
                    end = first + len(batch.texts)
                    in_batch = [number for number in numbers if first <= number < end]
                    if in_batch:
                        yield unit, batch, first, in_batch
                    first = end
                    if first > numbers[-1]:
                        break
            except (DataError, OSError):
                continue  # the samples are shown without their text


def _counts(table: pa.Table) -> Counter[tuple[str, str]]:
    """Returns the number of rows of each (rule, limit)."""
    counts: Counter[tuple[str, str]] = Counter()
    has_limit = pc.match_substring(table["evidence"], '"measure"')
    for entry in pc.value_counts(table.filter(pc.invert(has_limit))["rule"]).to_pylist():
        counts[entry["values"], ""] += entry["counts"]
    limited = table.filter(has_limit)
    for rule in limited["rule"].unique().to_pylist():
        for entry in pc.value_counts(limited.filter(pc.equal(limited["rule"], rule))["evidence"]).to_pylist():
            counts[rule, limit_of(json.loads(entry["values"]))] += entry["counts"]
    return counts


def limit_of(evidence: Mapping[str, Any]) -> str:
    """Returns the limit that evidence names; "" if there is none.

    >>> limit_of({"measure": "gopher_words", "min_words": 50})
    'min_words'
    """
    return next((name for name in evidence if name != "measure"), "") if "measure" in evidence else ""


def differences(removed: str, kept: str) -> Iterator[tuple[str, str]]:
    """Yields the text of two similar documents as pieces (mark, text): "=" in both, "-" removed only, "+" kept only.

    Long equal stretches are shortened to their ends.

    >>> list(differences("we saw the old map ", "we saw an old map "))
    [('=', 'we saw '), ('-', 'the '), ('+', 'an '), ('=', 'old map ')]
    """
    ours, theirs = (_WORDS.findall(text)[:_MOST_WORDS] for text in (removed, kept))
    matcher = difflib.SequenceMatcher(None, ours, theirs, autojunk=False)
    for kind, our_start, our_end, their_start, their_end in matcher.get_opcodes():
        if kind == "equal":
            yield "=", _shortened(ours[our_start:our_end])
            continue
        if our_end > our_start:
            yield "-", "".join(ours[our_start:our_end])
        if their_end > their_start:
            yield "+", "".join(theirs[their_start:their_end])


def cut_pieces(text: str, passages: Iterable[tuple[int, int]]) -> Iterator[tuple[str, str]]:
    """Yields a text as pieces (mark, text): "-" for its passages, "=" for the rest, shortened as in `differences`.

    >>> list(cut_pieces("a\\nb\\nc", [(2, 4)]))
    [('=', 'a\\n'), ('-', 'b\\n'), ('=', 'c')]
    """
    place = 0
    for start, end in [*passages, (len(text), len(text))]:
        if start > place:
            yield "=", _shortened(_PIECES.findall(text[place:start]))
        if end > start:
            yield "-", text[start:end]
        place = end


def _shortened(words: list[str]) -> str:
    if len(words) <= 2 * _SHOWN_EQUAL + 1:
        return "".join(words)
    return "".join([*words[:_SHOWN_EQUAL], "… ", *words[-_SHOWN_EQUAL:]])
