"""The documents of a work unit that rules remove: which, by which rule, with what value and on what evidence.

A rule is a short name, such as `exact` or `gopher`. Each rule that hits a document is recorded, and the document is
removed once. A document's number is its index among the non-blank documents of its unit, in the order of reading.
"""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from beam_pipeline.support.arrow import pa, pc

EXACT = "exact"
"""The rule that removes documents with the same text as an earlier one."""

NEAR = "near"
"""The rule that removes documents that are similar to an earlier one."""

PASSAGES_RULE = "decontaminate_passages"
"""The rule that removes passages with items of benchmarks from documents, which stay."""

PARAGRAPHS = "paragraphs"
"""The rule that removes paragraphs of many documents from documents, which stay."""

ALL_PARAGRAPHS = "paragraphs.all"
"""The rule that removes documents of which PARAGRAPHS would leave nothing."""

PII = "pii"
"""The rule that masks personal data in documents, which stay."""

CUTS = (PASSAGES_RULE, PARAGRAPHS)
"""The rules that remove passages only."""

EDITS = (*CUTS, PII)
"""The rules that change documents, which stay."""

PASSAGES = "passages"
"""The key of the evidence that lists the passages which are removed instead of the document: [first character, the one
after the last]."""

RULE_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
"""Matches the name of a rule. Combinations of rules are joined by `+`."""
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, eq=False)
class Removals:
    """The removals of one unit, or of a batch of its documents, in ascending order of documents, then of rules."""

    rows: pa.Table | None
    """See `table`; None if there are none. Arrow imports pandas with its first array, which most runs do without."""

    @property
    def table(self) -> pa.Table:
        """A row for each document and rule, with the columns document (int64), rule, value (float64: what the rule
        measured, such as a similarity; NaN if nothing) and evidence (JSON)."""
        return removals_schema().empty_table() if self.rows is None else self.rows

    @classmethod
    def empty(cls) -> Removals:
        return cls(None)

    @classmethod
    def of_rule(
        cls,
        rule: str,
        documents: np.ndarray,
        values: np.ndarray | Sequence[float],
        evidence: Sequence[Mapping[str, Any]],
    ) -> Removals:
        """Returns the removals of one rule.

        Args:
            rule: The name of the rule.
            documents: int64 [removals], the numbers of the documents, in any order.
            values: float64 [removals], what the rule measured.
            evidence: What the rule saw in each document; JSON objects.
        """
        if not RULE_NAME.fullmatch(rule):
            raise ValueError(f"{rule!r} is not the name of a rule")
        if not len(evidence):
            return cls.empty()
        texts = list(map(_json_of, evidence))
        columns = {
            "document": pa.array(documents, pa.int64()),
            "rule": pa.array([rule] * len(texts), pa.string()),
            "value": pa.array(values, pa.float64()),
            "evidence": pa.array(texts, pa.string()),
        }
        return cls.concat([cls(pa.table(columns, removals_schema()))])

    @classmethod
    def concat(cls, parts: Iterable[Removals]) -> Removals:
        """Returns the removals of all parts. Their order does not matter."""
        tables = [part.table for part in parts if len(part)]
        if not tables:
            return cls.empty()
        order = [(name, "ascending") for name in ("document", "rule", "evidence")]
        return cls(pa.concat_tables(tables).sort_by(order).combine_chunks())

    def __len__(self) -> int:
        """Returns the number of pairs of a document and a rule."""
        return 0 if self.rows is None else self.rows.num_rows

    @property
    def documents(self) -> np.ndarray:
        """The numbers of the removed documents, each once: int64, ascending."""
        return np.unique(self.rows["document"].to_numpy()) if len(self) else np.empty(0, np.int64)

    def counts(self) -> dict[str, int]:
        """Returns the number of documents that each combination of rules removes.

        >>> first = Removals.of_rule("c4", np.array([1, 4]), [0.0, 0.0], [{}, {}])
        >>> Removals.concat([Removals.of_rule("near", np.array([4]), [0.9], [{}]), first]).counts()
        {'c4': 1, 'c4+near': 1}
        """
        if not len(self):
            return {}
        rules: dict[int, dict[str, None]] = {}  # as ordered sets
        for document, rule in zip(
            *(self.table[name].to_pylist() for name in ("document", "rule")), strict=True
        ):
            rules.setdefault(document, {})[rule] = None
        return dict(sorted(Counter("+".join(names) for names in rules.values()).items()))

    def between(self, start: int, end: int) -> Removals:
        """Returns the removals of the documents `start` to `end - 1`."""
        if not len(self):
            return self
        first, stop = np.searchsorted(self.table["document"].to_numpy(), [start, end]).tolist()
        return Removals(self.table.slice(first, stop - first))

    def without_edits(self) -> Removals:
        """Returns the removals of whole documents."""
        if not len(self):
            return self
        is_edit = pc.is_in(self.table["rule"], pa.array(EDITS))
        return Removals(self.table.filter(pc.invert(is_edit)))

    def edits(self) -> Removals:
        """Returns the removals of passages from documents that stay, and the masked personal data."""
        return self.of_rules(EDITS)

    def of_rules(self, rules: Sequence[str]) -> Removals:
        """Returns the removals of some rules."""
        return (
            Removals(self.table.filter(pc.is_in(self.table["rule"], pa.array(rules)))) if len(self) else self
        )

    def without(self, documents: np.ndarray, masked: np.ndarray | Sequence[int] = ()) -> Removals:
        """Returns the removals of other documents.

        Args:
            documents: int64, those whose removals by any rule but `PII` are left out.
            masked: int64, those whose removals by `PII` are left out.
        """
        if not len(self):
            return self
        numbers, is_pii = self.table["document"].to_numpy(), pc.equal(self.table["rule"], PII).to_numpy()
        keep = ~np.where(is_pii, np.isin(numbers, np.asarray(masked, np.int64)), np.isin(numbers, documents))
        return self if keep.all() else Removals(self.table.filter(pa.array(keep)))

    def with_rules(self, rules: list[str]) -> Removals:
        """Returns the removals with the rule of each row replaced."""
        table = self.table.set_column(1, removals_schema().field("rule"), pa.array(rules, pa.string()))
        return Removals.concat([Removals(table)])

    def shifted(self, first: int) -> Removals:
        """Returns the removals with `first` added to the number of each document."""
        if not len(self):
            return self
        documents = pa.array(self.table["document"].to_numpy() + first, pa.int64())
        return Removals(self.table.set_column(0, removals_schema().field("document"), documents))

    def to_bytes(self) -> bytes:
        """Returns equal bytes for equal removals; b"" for none."""
        if not len(self):
            return b""
        file = io.BytesIO()
        with pa.ipc.new_stream(file, removals_schema()) as writer:
            writer.write_table(self.table)
        return file.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> Removals:
        """Inverts `to_bytes`."""
        return cls(pa.ipc.open_stream(data).read_all()) if data else cls.empty()


def _json_of(evidence: Mapping[str, Any]) -> str:
    """Returns evidence as JSON. Values that JSON lacks, such as dates, become texts."""
    text = json.dumps(evidence, ensure_ascii=False, separators=(",", ":"), default=str)
    # Half of a surrogate pair has no UTF-8.
    return json.dumps(json.loads(text), separators=(",", ":")) if _SURROGATE.search(text) else text


@cache
def removals_schema() -> pa.Schema:
    """Returns the columns of `Removals.table`."""
    return pa.schema(
        [
            ("document", pa.int64()),
            ("rule", pa.string()),
            ("value", pa.float64()),
            ("evidence", pa.string()),
        ]
    )
