"""Shows removed documents: how many each rule removed and why, and samples, whose text the source still has."""

from __future__ import annotations

import difflib
import json
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from beam_pipeline.curation.pii import MASKS, SPANS, Span, spans
from beam_pipeline.curation.removals import PARAGRAPHS, PASSAGES, PASSAGES_RULE, Removals
from beam_pipeline.dataset import removed_documents
from beam_pipeline.dataset.removed_documents import read_removed, removed_path
from beam_pipeline.options.curation_options import CurationConfig
from beam_pipeline.sources.reading import read_unit
from beam_pipeline.sources.units import DocumentBatch, WorkUnit
from beam_pipeline.steps.curate import cut_passages, edit, make_decisions
from beam_pipeline.support import filesystem
from beam_pipeline.support.arrow import pa, pc, pq
from beam_pipeline.support.errors import DataError, UserError
from beam_pipeline.views.reading import FinishedSplit
from beam_pipeline.views.removed_counts import RemovedCounts
from beam_pipeline.views.tracing import input_options, unmasked_documents

_log = logging.getLogger(__name__)

_WORDS = re.compile(r"\S+\s*")
_PIECES = re.compile(r"^\s+|\S+\s*")
_SHOWN_EQUAL = 8  # words on each side of a difference
_CONTEXT = 60  # characters on each side of personal data
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
    columns: dict[str, str | None] = field(default_factory=dict)
    """Those of `--keep_columns`."""
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
        most_files: Reads only so many of the lists of work units, evenly spread.

    Raises:
        DataError: If no document was removed by this rule.
    """

    def __init__(self, split: FinishedSplit, rule: str, *, most_files: int | None = None):
        self._split, self._rule = split, rule
        self._sizes: dict[str, int] = {}
        self.counts = RemovedCounts()
        """The counts of the lists that were read."""
        rules: set[str] = set()
        files = filter(
            _UNIT.search, filesystem.list_folder(filesystem.join(split.dataset, removed_documents.FOLDER))
        )
        paths = sorted(files)
        self.files = len(paths)
        """The number of lists, of which `most_files` are read."""
        for path in _evenly_spread(paths, most_files or len(paths)):
            table = self._read(path)
            rules |= set(table["rule"].unique().to_pylist())
            table = self._selected(table)
            self._sizes[path] = len(table)
            if len(table):
                self.counts.add(table, split.units[_unit_of(path)].root)
        if not self.counts.by_limit:
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
                samples += _samples(path, self._selected(self._read(path)), numbers)
            before += size
        self._add_documents(samples)
        return samples

    def samples_by_rule(self, most: int, most_bytes: int) -> dict[str, list[Sample]]:
        """Returns up to `most` documents that each rule removes, those of the first list that has any.

        Work units are read in their order until they have `most_bytes`; the samples of others have no texts.
        """
        samples: dict[str, list[Sample]] = {}
        missing = {rule for rule, _ in self.counts.by_limit}
        for path in self._sizes:
            table = self._selected(self._read(path))
            rules = np.array(table["rule"].to_pylist(), object)
            for rule in sorted(missing & set(rules)):
                samples[rule] = _samples(path, table, _evenly_spread(np.flatnonzero(rules == rule), most))
                missing.remove(rule)
            if not missing:
                break
        self._add_documents([sample for group in samples.values() for sample in group], most_bytes)
        return samples

    def _add_documents(self, samples: list[Sample], most_bytes: int | None = None) -> None:
        """Reads the texts of samples, and of the documents that are kept instead."""
        places = {(sample.unit, sample.row["document"]) for sample in samples}
        places |= {sample.kept_place for sample in samples if sample.kept_place}
        documents = self._documents(places, most_bytes)
        for sample in samples:
            document = documents.get((sample.unit, sample.row["document"]))
            is_same = document and (document.path, document.place) == (
                sample.row["path"],
                sample.row["place"],
            )
            sample.document = document if is_same else None
            sample.kept = documents.get(sample.kept_place) if sample.kept_place else None
        cut = [sample for sample in samples if sample.document and PASSAGES in sample.evidence]
        try:
            self._add_uncut(cut)
        except UserError as error:  # such as a missing module of a filter
            _log.warning(f"removed passages are not shown: {error}")

    def _add_uncut(self, samples: Sequence[Sample]) -> None:
        """Edits the texts of documents as the run did before it cut passages."""
        by_place: dict[Place, list[Sample]] = {}  # both rules may cut one document
        for sample in samples:
            by_place.setdefault((sample.unit, sample.row["document"]), []).append(sample)
        if not by_place:
            return
        curation = CurationConfig.of_manifest(self._split.manifest["config"])
        decisions = make_decisions(curation, edits_only=True)
        for unit, read, first, numbers in self._batches(by_place, curation.columns):
            listed = read_removed(removed_path(self._split.dataset, unit.index)) or Removals.empty()
            unmasked = unmasked_documents(self._split, listed, first, len(read.texts))
            batch, _ = edit(unit, read, first, decisions, unmasked)
            in_batch = listed.between(first, first + len(read.texts)).shifted(-first)
            after_benchmarks, _ = cut_passages(batch, in_batch.of_rules([PASSAGES_RULE]))
            for number in numbers:
                for sample in by_place[unit.index, number]:
                    is_later = sample.row["rule"] == PARAGRAPHS
                    sample.uncut = (after_benchmarks if is_later else batch).texts[number - first]

    def _read(self, path: str) -> pa.Table:
        try:
            with filesystem.open_file(path) as file:
                return pq.read_table(file)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{path}: cannot be read: {error}") from error

    def _selected(self, table: pa.Table) -> pa.Table:
        if self._rule == "all":
            return table
        is_rule = pc.equal(table["rule"], self._rule)
        return table.filter(pc.or_(is_rule, pc.starts_with(table["rule"], f"{self._rule}.")))

    def _documents(self, places: Iterable[Place], most_bytes: int | None) -> dict[Place, ReadDocument]:
        """Reads documents again. Those of missing files, and of units after the first `most_bytes`, are absent."""
        result: dict[Place, ReadDocument] = {}
        for unit, batch, first, numbers in self._batches(places, most_bytes=most_bytes):
            for number in numbers:
                place, text = int(batch.places[number - first]), batch.texts[number - first]
                result[unit.index, number] = ReadDocument(unit.root + batch.name, place, text)
        return result

    def _batches(
        self, places: Iterable[Place], columns: Sequence[str] = (), *, most_bytes: int | None = None
    ) -> Iterator[tuple[WorkUnit, DocumentBatch, int, list[int]]]:
        """Yields the batches with documents, each with its unit, the number of its first document, and theirs."""
        numbers_of: dict[int, list[int]] = {}
        for unit, number in sorted(places):
            numbers_of.setdefault(unit, []).append(number)
        options, read_bytes = input_options(self._split), 0
        for index, numbers in numbers_of.items():
            unit, first = self._split.units[index], 0
            read_bytes += unit.bytes
            if most_bytes is not None and read_bytes > most_bytes:
                break
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


def masks_of(sample: Sample) -> list[Span]:
    """Returns the personal data that were masked in a sample; none if the source has others in these places.

    That is so if an earlier filter edited the text, or if the source has changed.
    """
    if sample.document is None:
        return []
    masked = [Span(*span) for span in sample.evidence.get(SPANS, [])]
    return masked if set(masked) <= set(spans(sample.document.text)) else []


def mask_pieces(text: str, masked: Sequence[Span]) -> Iterator[tuple[str, str]]:
    """Yields a text as pieces (mark, text): what is masked as "-", and its mask as "+".

    >>> list(mask_pieces("Mail jo@a.org.", [Span(5, 13, "email")]))
    [('=', 'Mail '), ('-', 'jo@a.org'), ('+', '<email>'), ('=', '.')]
    """
    end = 0
    for span in masked:
        yield "=", _context(text[end : span.start], both=end > 0)
        yield "-", text[span.start : span.end]
        yield "+", MASKS[span.kind]
        end = span.end
    yield "=", text[end:][:_CONTEXT] + "…" * (len(text) - end > _CONTEXT)


def _context(text: str, *, both: bool) -> str:
    """Returns the end of a text, and with `both` also its beginning."""
    most = 2 * _CONTEXT if both else _CONTEXT
    return text if len(text) <= most else f"{text[:_CONTEXT] if both else ''}…{text[-_CONTEXT:]}"


def _samples(path: str, table: pa.Table, numbers: np.ndarray) -> list[Sample]:
    """Returns the rows of a list with these numbers, without texts."""
    samples = []
    for row in table.take(pa.array(numbers)).to_pylist():
        columns = row.pop(removed_documents.COLUMNS, None) or {}
        samples.append(Sample(_unit_of(path), row, json.loads(row["evidence"]), columns))
    return samples


def _unit_of(path: str) -> int:
    return int(_UNIT.search(path)[1])


def _evenly_spread(items: Sequence[Any], most: int) -> Any:
    """Returns up to `most` of the items, in their order."""
    if len(items) <= most:
        return items
    return [items[index] for index in np.linspace(0, len(items) - 1, most).astype(np.int64).tolist()]


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
