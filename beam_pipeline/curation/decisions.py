"""What a step that removes or edits documents decides about a batch of them, by their texts alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from beam_pipeline.curation.removals import Removals
from beam_pipeline.sources.units import DocumentBatch, WorkUnit


@dataclass(frozen=True)
class Decided:
    """What was decided about a batch."""

    removals: Removals = field(default_factory=Removals.empty)
    """The documents to remove, by their index in the batch."""
    texts: list[str] | None = None
    """The text of each document of the batch after an edit. None: no text was edited."""


class Decision(Protocol):
    """Decides about the documents of a batch. The result depends on nothing but the arguments."""

    def __call__(self, unit: WorkUnit, batch: DocumentBatch, first: int) -> Decided:
        """Decides.

        Args:
            unit: The unit that is read.
            batch: All documents of the batch, also those that an earlier decision removes, with its edits.
            first: The number of the batch's first document in the unit.
        """
        ...
