"""Counts what an engine has left to Hugging Face's `tokenizers`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


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

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Counts nothing in this block."""
        before = self.documents, self.bytes, self.reasons.copy()
        try:
            yield
        finally:
            self.documents, self.bytes, self.reasons = before
