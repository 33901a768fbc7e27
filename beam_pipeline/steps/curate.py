"""Reads a work unit with the decisions that depend on single documents: which to remove, and which texts to edit.

Deduplication and tokenization read units by this function, so documents that are removed here take no part in
deduplication, and edited texts are what both see. To add such a decision, append it in `make_decisions`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from beam_pipeline.curation.contamination import RULE as CONTAMINATED
from beam_pipeline.curation.contamination import cut
from beam_pipeline.curation.decisions import Decided, Decision
from beam_pipeline.curation.filters import make_filters
from beam_pipeline.curation.pii import MaskPersonalData
from beam_pipeline.curation.removals import CUTS, PASSAGES, PASSAGES_RULE, Removals
from beam_pipeline.curation.restore import Restored
from beam_pipeline.dataset.bad_records import Excluded
from beam_pipeline.dataset.removed_documents import removed_path, write_removed
from beam_pipeline.dataset.text_checksums import KEY, TextChecksums
from beam_pipeline.options.curation_options import CurationConfig
from beam_pipeline.options.prepare_options import PrepareConfig
from beam_pipeline.sources.conversations import message_texts
from beam_pipeline.sources.reading import read_unit
from beam_pipeline.sources.record_columns import column_table
from beam_pipeline.sources.units import DocumentBatch, WorkUnit
from beam_pipeline.steps.job import Job
from beam_pipeline.steps.keep import KeepByAttributes
from beam_pipeline.support import filesystem
from beam_pipeline.support.arrow import pa
from beam_pipeline.support.texts import Texts

NO_DOCUMENTS = np.empty(0, np.int64)
EMPTY = "empty"
"""The rule that removes documents of which edits leave nothing."""


@dataclass(frozen=True)
class Curation:
    """The decisions of a run. Made on a worker, since models and functions are loaded on first use."""

    config: PrepareConfig

    @cached_property
    def decisions(self) -> list[Decision]:
        """All decisions, in the order in which edits apply."""
        return make_decisions(self.config.curation)

    @cached_property
    def restored(self) -> Restored:
        """The documents that stay, whatever rules decide."""
        return Restored(self.config.curation.restore)


@dataclass(frozen=True)
class CuratedBatch:
    """Consecutive documents of one file, and what was decided about them."""

    read: DocumentBatch
    """All documents, as they were read."""
    first: int
    """The number of the first of them in the unit."""
    batch: DocumentBatch
    """Those that are not removed, with edited texts."""
    numbers: np.ndarray
    """int64 [documents of `batch`]: their numbers in the unit."""
    removals: Removals
    """The others, by their numbers in the unit, and the edited documents from which other steps removed passages."""


class RemovedDocuments:
    """The removals of a unit, with the path and place of each document, and the columns of `--keep_columns`."""

    def __init__(self, keep_columns: Sequence[str] = ()) -> None:
        self._names = keep_columns
        self._columns: list[pa.Table] = []
        self._removals: list[Removals] = []
        self._places = [np.empty(0, np.int64)]
        self.paths: list[str] = []
        """The file of each removed document."""

    def add(self, unit: WorkUnit, curated: CuratedBatch) -> None:
        """Adds the removals of a batch. Batches come in the order of reading."""
        documents = curated.removals.documents - curated.first
        if len(documents):
            self._removals.append(curated.removals)
            self._places.append(curated.read.places[documents])
            self.paths += [unit.root + curated.read.name] * len(documents)
            if self._names:
                columns = {name: curated.read.columns[name] for name in self._names}
                self._columns.append(
                    column_table(
                        {name: [values[i] for i in documents] for name, values in columns.items()},
                        self._names,
                    )
                )

    def removals(self) -> Removals:
        """Returns the removals."""
        return Removals.concat(self._removals)

    def write(self, job: Job, unit: WorkUnit) -> str | None:
        """Writes the list of the documents. Returns its path, or None if there are none."""
        path = removed_path(job.output, unit.index)
        if self.paths:
            columns = pa.concat_tables(self._columns) if self._columns else None
            write_removed(path, self.removals(), self.paths, np.concatenate(self._places), columns)
            return path
        if job.config.resume:  # the files may have changed since an earlier run listed documents of this unit
            filesystem.delete([path])
        return None


def kept_documents(
    unit: WorkUnit,
    curation: Curation,
    removals: Removals,
    *,
    removed: RemovedDocuments,
    excluded: Excluded,
    checksums: TextChecksums,
    advance: Callable[[float], None],
) -> Iterator[DocumentBatch]:
    """Yields the unit's documents that no rule removes.

    Adds the others to `removed`, all records but the bad and removed ones to `excluded`, and the texts as read to
    `checksums`. The other arguments and errors are those of `curated_batches`.
    """
    for curated in curated_batches(unit, curation, checksums, advance, removals):
        read = curated.read
        excluded.records += len(read.texts) + read.blank + len(read.bad_records)
        excluded.blank_documents += read.blank
        removed.add(unit, curated)
        yield curated.batch


def curated_batches(
    unit: WorkUnit,
    curation: Curation,
    checksums: TextChecksums,
    advance: Callable[[float], None] = lambda done: None,
    removals: Removals | None = None,
) -> Iterator[CuratedBatch]:
    """Yields the unit's documents with what was decided about them. Adds the texts as read to `checksums`.

    The arguments and errors are otherwise those of `read_unit`.

    Args:
        removals: The unit's removals that other steps have decided.
    """
    first = 0
    config = curation.config
    removals = removals or Removals.empty()
    for read in checksums.add_each(read_unit(unit, config.input, advance, config.curation.columns)):
        others = removals.between(first, first + len(read.texts))
        yield curate(unit, read, first, curation, others)
        first += len(read.texts)


def curate(
    unit: WorkUnit, read: DocumentBatch, first: int, curation: Curation, others: Removals
) -> CuratedBatch:
    """Applies the decisions to a batch, and then the removals that other steps have decided.

    The number of the batch's first document in the unit is `first`.
    """
    path = unit.root + read.name
    unmasked = curation.restored.unmasked(path, read.places)
    batch, removed = edit(unit, read, first, curation.decisions, unmasked)
    removed, others = (
        curation.restored.apply(part, path, read.places) for part in (removed, others.shifted(-first))
    )
    numbers = np.arange(first, first + len(read.texts))
    batch, others = cut_passages(batch, others)
    removed = Removals.concat([removed, others])
    dropped = removed.without_edits().documents
    if len(dropped):
        batch, numbers = batch.without(dropped), np.delete(numbers, dropped)
    return CuratedBatch(read, first, batch, numbers, removed.shifted(first))


def compared_texts(batch: DocumentBatch, config: PrepareConfig) -> list[str]:
    """Returns the texts by which documents are compared with others.

    Those of a conversation are its messages', without the keys and tools that many conversations share.
    """
    return list(map(message_texts, batch.texts)) if config.has_targets else batch.texts


def index_of_texts(
    job: Job, unit: WorkUnit, path: str, identity: Mapping[str, Any], checksums: TextChecksums
) -> dict[str, Any]:
    """Returns the entries that the index of a file about all texts of a unit begins with.

    Args:
        job: The run.
        unit: The unit.
        path: The file. If an earlier attempt of this run wrote it, the texts must not have changed since.
        identity: What the file depends on; see `identity_of`.
        checksums: Of all texts.

    Raises:
        DataError: If they have.
    """
    run_identity = {"fingerprint": job.fingerprint, "run": job.run}
    checksums.check(unit, path, **run_identity)
    return {**identity, **run_identity, KEY: checksums.by_name}


def cut_passages(batch: DocumentBatch, removals: Removals) -> tuple[DocumentBatch, Removals]:
    """Cuts passages out of documents, if the removals list them.

    Args:
        batch: The documents.
        removals: Removals of documents of the batch, by their index in it, as decided, or as OUT/removed lists them.

    Returns:
        The batch with the rest of their texts, and the removals. Those of documents with such a rest have a rule of
        CUTS. Documents without any are removed.
    """
    if not len(removals):
        return batch, removals
    texts, rules = list(batch.texts), removals.table["rule"].to_pylist()
    columns = (removals.table[name].to_pylist() for name in ("document", "evidence"))
    edits = {CONTAMINATED: PASSAGES_RULE} | dict(zip(CUTS, CUTS, strict=True))
    # The passages of a rule are those of the text that the one before has left.
    for row, (document, evidence) in enumerate(zip(*columns, strict=True)):
        passages = json.loads(evidence).get(PASSAGES) if rules[row] in edits else None
        rest = cut(texts[document], passages) if passages else ""
        if rest and not rest.isspace():
            texts[document], rules[row] = rest, edits[rules[row]]
    edited = [index for index, text in enumerate(texts) if text is not batch.texts[index]]
    if not edited:
        return batch, removals
    return replace(batch, texts=Texts.of(texts)), removals.with_rules(rules)


def edit(
    unit: WorkUnit,
    read: DocumentBatch,
    first: int,
    decisions: list[Decision],
    unmasked: np.ndarray = NO_DOCUMENTS,
) -> tuple[DocumentBatch, Removals]:
    """Returns all documents of a batch with edited texts, and the removals by their index. See `curate`.

    Personal data stay in the documents with the indices `unmasked`, int64.
    """
    batch, removals = read, []
    for decide in decisions:
        decided = decide(unit, batch, first)
        if len(unmasked) and isinstance(decide, MaskPersonalData) and decided.texts is not None:
            texts = list(decided.texts)
            for index in unmasked.tolist():
                texts[index] = batch.texts[index]
            decided = Decided(decided.removals.without(NO_DOCUMENTS, masked=unmasked), texts)
        removals.append(decided.removals)
        if decided.texts is not None:
            blank = [index for index, text in enumerate(decided.texts) if not text or text.isspace()]
            texts = list(decided.texts)
            for index in blank:  # if they are restored, then with the text before the edit
                texts[index] = batch.texts[index]
            batch = replace(batch, texts=Texts.of(texts))
            removals.append(Removals.of_rule(EMPTY, blank, np.zeros(len(blank)), [{}] * len(blank)))
    return batch, Removals.concat(removals)


def make_decisions(config: CurationConfig, *, edits_only: bool = False) -> list[Decision]:
    """Returns the decisions that the options request; with `edits_only`, those that may edit texts."""
    keep: list[Decision] = []
    if (
        config.keep is not None and not edits_only
    ):  # before any edit, since attributes are of the texts as read
        keep.append(KeepByAttributes(config.attributes, config.keep))
    return keep + make_filters(config, edits_only=edits_only)
