"""Counts of removed documents by rule, by source and by the columns of `--keep_columns`, and the values of rules."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from beam_pipeline.dataset.removed_documents import COLUMNS
from beam_pipeline.support.arrow import pa, pc

DOCUMENTS = ""
"""The key of the number of documents, beside those by rule."""
_MOST_VALUES = 100_000  # of a rule in memory
_MOST_TEXTS = 100_000  # different values of a column in memory

Groups = dict[str, Counter[str]]
"""Group of documents, such as those of a source → how many each rule removes, and under `DOCUMENTS`, how many any."""


class RemovedCounts:
    """Counts over the lists of work units."""

    def __init__(self) -> None:
        self.by_limit: Counter[tuple[str, str]] = Counter()
        """The number of documents of each (rule, limit); the limit is "" if the evidence has none."""
        self._by_path: Groups = defaultdict(Counter)
        self.by_column: dict[str, Groups] = {}
        """The groups by the values of each column of `--keep_columns`; those of URLs are their hosts."""
        self._values: defaultdict[tuple[str, str], list[np.ndarray]] = defaultdict(list)

    def add(self, table: pa.Table, root: str) -> None:
        """Adds rows of the list of a unit, whose files are below the folder `root`."""
        table = table.append_column("limit", _limits(table["evidence"]))
        for row in table.group_by(["rule", "limit"]).aggregate([("document", "count_distinct")]).to_pylist():
            key = row["rule"], row["limit"]
            self.by_limit[key] += row["document_count_distinct"]
            if sum(map(len, self._values[key])) < _MOST_VALUES:
                is_key = pc.and_(pc.equal(table["rule"], key[0]), pc.equal(table["limit"], key[1]))
                self._values[key].append(table["value"].filter(is_key).to_numpy())
        for path, counts in _counts_by(table, table["path"]):
            self._by_path[path.removeprefix(root)].update(counts)
        for name, column in _columns(table):
            groups = self.by_column.setdefault(name, defaultdict(Counter))
            for value, counts in _counts_by(table, column) if len(groups) < _MOST_TEXTS else ():
                groups[_group_of(value)].update(counts)

    @property
    def by_source(self) -> Groups:
        """The groups by the folders below the common one; by file if there is only one folder."""
        groups: Groups = defaultdict(Counter)
        for path, counts in self._by_path.items():
            folder, slash, _ = path.partition("/")
            groups[folder + slash].update(counts)
        return dict(self._by_path) if len(groups) == 1 else groups

    def histograms(self, bins: int) -> Iterator[tuple[tuple[str, str], np.ndarray, np.ndarray]]:
        """Yields each (rule, limit) with several values, most frequent first, its counts and the edges of its bins."""
        for key, _ in self.by_limit.most_common():
            values = np.concatenate([np.empty(0), *self._values[key]])
            values = values[np.isfinite(values)]
            if len(np.unique(values)) > 1:
                yield (key, *np.histogram(values, bins))


def largest(groups: Groups, most: int) -> list[tuple[str, Counter[str]]]:
    """Returns the groups with the most documents, largest first, then by name."""
    return sorted(groups.items(), key=lambda item: (-item[1][DOCUMENTS], item[0]))[:most]


def limit_of(evidence: Mapping[str, Any]) -> str:
    """Returns the limit that evidence names; "" if there is none.

    >>> limit_of({"measure": "gopher_words", "min_words": 50})
    'min_words'
    """
    return next((name for name in evidence if name != "measure"), "") if "measure" in evidence else ""


def _limits(evidence: pa.ChunkedArray) -> pa.Array:
    """Returns the limit of each row."""
    encoded = (
        pc.if_else(pc.match_substring(evidence, '"measure"'), evidence, "{}")
        .combine_chunks()
        .dictionary_encode()
    )
    limits = [limit_of(json.loads(text)) for text in encoded.dictionary.to_pylist()]
    return pa.array(limits, pa.string()).take(encoded.indices)


def _counts_by(table: pa.Table, keys: pa.ChunkedArray) -> Iterator[tuple[str | None, Counter[str]]]:
    """Yields each key, and how many documents with it each rule removes, and all rules."""
    table = pa.table({"key": keys, "rule": table["rule"], "document": table["document"]})
    counts: defaultdict[str | None, Counter[str]] = defaultdict(Counter)
    for names in (["key", "rule"], ["key"]):
        for row in table.group_by(names).aggregate([("document", "count_distinct")]).to_pylist():
            counts[row["key"]][row.get("rule", DOCUMENTS)] = row["document_count_distinct"]
    yield from counts.items()


def _columns(table: pa.Table) -> Iterator[tuple[str, pa.ChunkedArray]]:
    if COLUMNS in table.column_names:
        for index, field in enumerate(table[COLUMNS].type):
            yield field.name, pc.struct_field(table[COLUMNS], [index])


def _group_of(value: str | None) -> str:
    """Returns the group of a value: the host of a URL, so that documents are counted by site.

    >>> [_group_of(value) for value in ("https://www.example.org/page", "en", None)]
    ['www.example.org', 'en', '(none)']
    """
    if value is None:
        return "(none)"
    if "://" in value:
        try:
            return urlsplit(value).hostname or value
        except ValueError:
            return value
    return value
