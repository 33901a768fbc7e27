"""Counts of the documents that an engine encoded, and of the part that Hugging Face's `tokenizers` encoded instead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Fallbacks:
    """Counts of the documents that HF encoded instead of a fast engine, as a whole or in part."""

    documents: int = 0
    bytes: int = 0
    """UTF-8 bytes of the normalized pieces that HF encoded, or whose ids were cached."""
    reasons: Counter[str] = field(default_factory=Counter)
    """Reason → number of documents."""

    def add(self, pieces: Iterable[tuple[str, int, str]]) -> None:
        """Counts pieces of a batch: (reason, number of the document, text)."""
        documents: dict[str, set[int]] = {}
        for reason, document, text in pieces:
            documents.setdefault(reason, set()).add(document)
            self.bytes += len(text.encode())
        self.documents += len(set().union(*documents.values()))
        self.reasons.update({reason: len(numbers) for reason, numbers in documents.items()})

    def copy(self) -> Fallbacks:
        """Returns a copy that does not change with this object."""
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
        counts = self.copy()
        try:
            yield
        finally:
            self.documents, self.bytes, self.reasons = counts.documents, counts.bytes, counts.reasons


@dataclass(frozen=True)
class EngineUse:
    """Counts of the documents that an engine encoded.

    They depend only on the documents, the tokenizer and the library's release.
    """

    name: str
    """The engine's name in `--engine`."""
    version: str
    """The release of its library."""
    documents: int
    fallbacks: Fallbacks
    """The part encoded by HF instead: all of it if no fast engine supports the tokenizer, none with `--engine hf`."""
    dropped: Counter[str] = field(default_factory=Counter)
    """The number of `characters` that the model has no token for and drops, and of the `documents` with any."""
    truncated: Counter[str] = field(default_factory=Counter)
    """The number of `tokens` cut off from conversations that are too long, and of these `documents`."""
    infilled: Counter[str] = field(default_factory=Counter)
    """The number of `documents` cut for infilling, and of those that stay `whole`: they are too long for a row."""

    @property
    def engine(self) -> tuple[str, str]:
        """The name and version. Only counts of the same engine can be added."""
        return self.name, self.version

    def __add__(self, other: EngineUse) -> EngineUse:
        assert self.engine == other.engine, (self.engine, other.engine)
        return EngineUse(
            *self.engine,
            self.documents + other.documents,
            self.fallbacks + other.fallbacks,
            self.dropped + other.dropped,
            self.truncated + other.truncated,
            self.infilled + other.infilled,
        )

    def __sub__(self, earlier: EngineUse) -> EngineUse:
        return EngineUse(
            *self.engine,
            self.documents - earlier.documents,
            self.fallbacks - earlier.fallbacks,
            self.dropped - earlier.dropped,
            self.truncated - earlier.truncated,
            self.infilled - earlier.infilled,
        )

    def to_json(self) -> dict[str, Any]:
        """Returns the entry in the manifest."""
        return {
            "name": self.name,
            "version": self.version,
            "documents": self.documents,
            "left_to_hf": {
                "documents": self.fallbacks.documents,
                "bytes": self.fallbacks.bytes,
                "reasons": dict(sorted(self.fallbacks.reasons.items())),
            },
            **({"dropped": dict(self.dropped)} if self.dropped else {}),
            **({"truncated": dict(self.truncated)} if self.truncated else {}),
            **(
                {"infilled": {name: self.infilled[name] for name in ("documents", "whole")}}
                if self.infilled
                else {}
            ),
        }

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> EngineUse:
        """Inverts `to_json`."""
        counts = entry["left_to_hf"]
        return cls(
            entry["name"],
            entry["version"],
            entry["documents"],
            Fallbacks(counts["documents"], counts["bytes"], Counter(counts["reasons"])),
            Counter(entry.get("dropped", {})),
            Counter(entry.get("truncated", {})),
            Counter(entry.get("infilled", {})),
        )
