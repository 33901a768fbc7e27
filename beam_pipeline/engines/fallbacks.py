"""Counts what an engine has encoded, and what of it was left to Hugging Face's `tokenizers`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Fallbacks:
    """What an engine has left to HF, in part or as a whole."""

    documents: int = 0
    bytes: int = 0
    """UTF-8, of the normalized pieces that HF has encoded, or whose ids were cached."""
    reasons: Counter[str] = field(default_factory=Counter)
    """Reason → number of documents."""

    def add(self, left: Iterable[tuple[str, int, str]]) -> None:
        """Counts the pieces of a batch that were left to HF: (reason, number of the document, text)."""
        documents: dict[str, set[int]] = {}
        for reason, number, text in left:
            documents.setdefault(reason, set()).add(number)
            self.bytes += len(text.encode())
        self.documents += len(set().union(*documents.values()))
        self.reasons.update({reason: len(numbers) for reason, numbers in documents.items()})

    def copy(self) -> Fallbacks:
        return Fallbacks(self.documents, self.bytes, self.reasons.copy())

    def __add__(self, other: Fallbacks) -> Fallbacks:
        return Fallbacks(
            self.documents + other.documents, self.bytes + other.bytes, self.reasons + other.reasons
        )

    def __sub__(self, earlier: Fallbacks) -> Fallbacks:
        return Fallbacks(
            self.documents - earlier.documents, self.bytes - earlier.bytes, self.reasons - earlier.reasons
        )

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Counts nothing in this block."""
        before = self.copy()
        try:
            yield
        finally:
            self.documents, self.bytes, self.reasons = before.documents, before.bytes, before.reasons


@dataclass(frozen=True)
class EngineUse:
    """What an engine has encoded. The counts depend only on the documents, the tokenizer and the library's release."""

    name: str
    """As in `--engine`."""
    version: str
    """The release of its library."""
    documents: int
    left: Fallbacks
    """What of it was left to HF. If no fast engine supports the tokenizer, all of it; nothing if the user chose HF."""
    dropped: Counter[str] = field(default_factory=Counter)
    """The number of `characters` that the model has no token for and drops, and of the `documents` with any."""

    @property
    def engine(self) -> tuple[str, str]:
        """Its name and version. Only the counts of the same engine can be added."""
        return self.name, self.version

    def __add__(self, other: EngineUse) -> EngineUse:
        assert self.engine == other.engine, (self.engine, other.engine)
        return EngineUse(
            *self.engine,
            self.documents + other.documents,
            self.left + other.left,
            self.dropped + other.dropped,
        )

    def __sub__(self, earlier: EngineUse) -> EngineUse:
        return EngineUse(
            *self.engine,
            self.documents - earlier.documents,
            self.left - earlier.left,
            self.dropped - earlier.dropped,
        )

    def to_json(self) -> dict[str, Any]:
        """Returns its entry in the manifest."""
        left = {
            "documents": self.left.documents,
            "bytes": self.left.bytes,
            "reasons": dict(sorted(self.left.reasons.items())),
        }
        return {
            "name": self.name,
            "version": self.version,
            "documents": self.documents,
            "left_to_hf": left,
            **({"dropped": dict(self.dropped)} if self.dropped else {}),
        }

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> EngineUse:
        left = entry["left_to_hf"]
        fallbacks = Fallbacks(left["documents"], left["bytes"], Counter(left["reasons"]))
        return cls(
            entry["name"], entry["version"], entry["documents"], fallbacks, Counter(entry.get("dropped", {}))
        )
