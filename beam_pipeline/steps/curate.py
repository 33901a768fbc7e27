"""Reads a work unit with the decisions that depend on single documents: which to remove, and which texts to edit.

Deduplication and tokenization read units by this function, so documents that are removed here take no part in
deduplication, and edited texts are what both see. To add such a decision, append it in `make_decisions`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from beam_pipeline.curation.decisions import Decision
from beam_pipeline.curation.filters import make_filters
from beam_pipeline.curation.removals import Removals
from beam_pipeline.curation.restore import Restored
from beam_pipeline.dataset.text_checksums import TextChecksums
from beam_pipeline.options.curation_options import CurationConfig
from beam_pipeline.options.prepare_options import PrepareConfig
from beam_pipeline.sources.reading import read_unit
from beam_pipeline.sources.units import DocumentBatch, WorkUnit, utf8_sizes
from beam_pipeline.steps.keep import KeepByAttributes

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
    """The others, by their numbers in the unit."""


class RemovedDocuments:
    """The removals of a unit, with the path and place of each document."""

    def __init__(self) -> None:
        self._removals: list[Removals] = []
        self._places = [np.empty(0, np.int64)]
        self.paths: list[str] = []
        """The file of each removed document."""

    def add(self, unit: WorkUnit, curated: CuratedBatch, removals: Removals) -> None:
        """Adds removals of documents of a batch. Batches come in the order of reading."""
        documents = removals.documents - curated.first
        if len(documents):
            self._removals.append(removals)
            self._places.append(curated.read.places[documents])
            self.paths += [unit.root + curated.read.name] * len(documents)

    @property
    def removals(self) -> Removals:
        return Removals.concat(self._removals)

    @property
    def places(self) -> np.ndarray:
        """int64, the place of each removed document, as in `DocumentBatch.places`."""
        return np.concatenate(self._places)


def curated_batches(
    unit: WorkUnit,
    curation: Curation,
    checksums: TextChecksums,
    advance: Callable[[float], None] = lambda done: None,
) -> Iterator[CuratedBatch]:
    """Yields the unit's documents with what was decided about them. Adds the texts as read to `checksums`.

    The arguments and errors are otherwise those of `read_unit`.
    """
    first = 0
    config = curation.config
    for read in checksums.add_each(read_unit(unit, config.input, advance, config.curation.columns)):
        yield curate(unit, read, first, curation)
        first += len(read.texts)


def curate(unit: WorkUnit, read: DocumentBatch, first: int, curation: Curation) -> CuratedBatch:
    """Applies the decisions to a batch, whose first document has the number `first` in the unit."""
    batch, removed = edit(unit, read, first, curation.decisions)
    removed = curation.restored.apply(removed, unit.root + read.name, read.places, 0)
    numbers = np.arange(first, first + len(read.texts))
    if len(removed):
        dropped = removed.documents
        batch, numbers, removed = batch.without(dropped), np.delete(numbers, dropped), removed.shifted(first)
    return CuratedBatch(read, first, batch, numbers, removed)


def edit(
    unit: WorkUnit, read: DocumentBatch, first: int, decisions: list[Decision]
) -> tuple[DocumentBatch, Removals]:
    """Returns all documents of a batch with edited texts, and the removals by their index. See `curate`."""
    batch, removals = read, []
    for decide in decisions:
        decided = decide(unit, batch, first)
        removals.append(decided.removals)
        if decided.texts is not None:
            batch = replace(batch, texts=decided.texts, bytes=utf8_sizes(decided.texts))
            blank = [index for index, text in enumerate(decided.texts) if not text or text.isspace()]
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
