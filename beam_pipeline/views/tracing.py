"""Traces a record to its exact documents by reading, tokenizing and packing its unit again.

This time the packer gets each token's number in the unit's stream instead of its id. Each position of the record then
identifies its document, whatever the packing. Finally, the ids at these numbers must equal the record's ids. This
proves the result, and detects a source that has changed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from beam_pipeline.dataset.manifest import UNITS, split_shares
from beam_pipeline.engines.documents import DocumentTokenizer
from beam_pipeline.engines.token_arrays import Documents, ranges
from beam_pipeline.options.input_options import NOT_IN_ALL_MANIFESTS, InputConfig
from beam_pipeline.rows.packing import Packer, Tail
from beam_pipeline.rows.split_chooser import SplitChooser
from beam_pipeline.sources.reading import describe_place, read_unit
from beam_pipeline.sources.units import DocumentBatch, WorkUnit
from beam_pipeline.support import filesystem
from beam_pipeline.support.errors import DataError
from beam_pipeline.support.hashing import text_hashes
from beam_pipeline.tokenization.description import describe_tokenizer
from beam_pipeline.views.reading import Origin, Row, Split

_PADDING = -1
_TOO_MANY_TIMES = 16  # units of compressed files may have more bytes than estimated


class NotTraced(Exception):
    """The documents of a record cannot be determined; the message has the reason."""


class TraceTooSlow(NotTraced):
    """Finding the documents would take longer than allowed."""


@dataclass(frozen=True)
class DocumentPart:
    """A part of a row that came from one document."""

    first: int
    """Position of its first token in the row."""
    end: int
    """Position after its last token in the row."""
    unit: WorkUnit
    name: str
    """The document's file, as in `DocumentBatch`."""
    place: int
    """The document's place in the file, as in `DocumentBatch`."""
    offset: int
    """Number of the document's tokens before this part."""
    tokens: int
    """Number of tokens of the whole document."""

    @property
    def whole(self) -> bool:
        """Whether this is the whole document."""
        return self.end - self.first == self.tokens

    def describe(self) -> str:
        """Describes where the document is, and which part of it this is."""
        place = describe_place(self.unit, self.name, self.place)
        if self.whole:
            return f"{place}, whole"
        last = self.offset + self.end - self.first - 1
        return f"{place}, its tokens {self.offset:,} to {last:,} of {self.tokens:,}"


@dataclass(frozen=True)
class _UnitDocuments:
    """A unit's documents in the split, with each document's file and place."""

    unit: WorkUnit
    documents: Documents
    names: list[str]
    places: list[int]


class Tracer:
    """Traces the rows of one split."""

    def __init__(self, split: Split):
        self._split = split
        config = split.manifest["config"]
        self._described = describe_tokenizer(split.tokenizer_folder)
        self._template = self._described.template_of(config["append_eos"])
        self._choose = SplitChooser(split_shares(split.manifest), config["seed"], config["split_by"])
        self._split_index = split.manifest["splits"].index(split.name)
        self._input = InputConfig(
            document=config["document"],
            text_key=config["text_key"],
            **{name: config[name] for name in NOT_IN_ALL_MANIFESTS if name in config},
            seed=config["seed"],
        )
        self._last: tuple[tuple[WorkUnit, ...], list[_UnitDocuments]] | None = None

    @cached_property
    def _tokenizer(self) -> DocumentTokenizer:
        """Made when the first row is traced, since an engine takes a second to load and most units are too large."""
        config = self._split.manifest["config"]
        return DocumentTokenizer(
            tokenizer_json=self._described.json,
            vocab_size=self._described.vocab_size,
            template=self._template,
            engine="auto",
            parse_special_tokens=config["parse_special_tokens"],
            control_ids=self._described.control_ids,
        )

    def trace(
        self, origin: Origin, row: Row, *, max_bytes: int | None = None, max_seconds: float | None = None
    ) -> list[DocumentPart]:
        """Returns the documents of a row, in their order.

        Args:
            origin: Where the row came from.
            row: The record.
            max_bytes: Largest number of bytes of the source to read again; None: no limit.
            max_seconds: Approximate limit of the time for that; None: no limit.

        Raises:
            TraceTooSlow: If a limit would be exceeded.
            NotTraced: If the source is missing or has changed.
            DataError: If the dataset is damaged.
        """
        found = self._unit_documents(origin, max_bytes, max_seconds)
        if self._split.manifest["config"]["packing"] == "none":
            numbers = _numbers_of(found[0].documents, origin.position)
            return self._checked(found, numbers, row)
        packed = _pack_numbers(found, self._split.manifest["config"])
        if origin.is_of_tails:
            joined = np.concatenate([tail.ids for _, tail in packed if tail is not None])
            numbers = joined[origin.skip :][: self._split.manifest["max_length"]]
        else:
            numbers = packed[0][0][origin.position :][:1]
            numbers = numbers[numbers != _PADDING]
        return self._checked(found, numbers, row)

    def _checked(self, found: Sequence[_UnitDocuments], numbers: np.ndarray, row: Row) -> list[DocumentPart]:
        """Returns the documents of the tokens with these numbers, if the row consists of these tokens."""
        stream = np.concatenate([unit.documents.ids for unit in found])
        if not np.array_equal(stream[numbers], row.ids):
            raise NotTraced("the source has changed since: it now gives other tokens")
        return list(_parts(found, numbers))

    def starts(self, origin: Origin, row: Row) -> np.ndarray | None:
        """Returns the positions at which documents begin in the row, or None if they are unknown without the source.

        They are known if the record has them, or if special tokens surround each document and occur nowhere else.
        """
        config, prefix, suffix = self._split.manifest["config"], self._template.prefix, self._template.suffix
        if row.starts is not None:
            return row.starts
        if config["packing"] in ("pad", "none"):
            return np.zeros(1, np.int64)
        in_text = config["parse_special_tokens"] or set(prefix) & set(suffix)
        # In rows of tails, parts may be adjacent that neither begin nor end a document. With best_fit, the end of a
        # document that is longer than a row may follow another document.
        unmarked = origin.is_of_tails or (config["packing"] == "best_fit" and not suffix)
        if in_text or unmarked or not (prefix or suffix):
            return None
        begins = np.flatnonzero(row.ids == prefix[0]) if prefix else np.empty(0, np.int64)
        after = np.flatnonzero(row.ids[:-1] == suffix[-1]) + 1 if suffix else np.empty(0, np.int64)
        return np.union1d(np.union1d(begins, after), [0])

    def _unit_documents(
        self, origin: Origin, max_bytes: int | None, max_seconds: float | None
    ) -> list[_UnitDocuments]:
        """Returns the documents of the row's units. Raises the errors of `trace`."""
        wanted = origin.units
        if self._last is not None and self._last[0] == wanted:
            return self._last[1]
        # Whether a document is a duplicate depends on all previous units.
        read = self._split.units[: wanted[-1].index + 1] if self._dedup else wanted
        size = sum(unit.bytes for unit in read)
        if max_bytes is not None and size > max_bytes:
            raise TraceTooSlow(f"finding the documents requires tokenizing {size / 1e6:,.0f} MB again")
        self._check_sources(read)
        try:
            documents = list(self._documents(read, wanted, size, max_bytes, max_seconds))
        except DataError as error:
            raise NotTraced(str(error)) from error
        self._last = (wanted, documents)
        return documents

    @property
    def _dedup(self) -> bool:
        return self._split.manifest["config"]["dedup"] != "none"

    def _check_sources(self, units: Sequence[WorkUnit]) -> None:
        """Raises NotTraced if a file of the units is missing or has another size."""
        paths = {unit.root + part.name for unit in units for part in unit.parts}
        sizes = {path: size for path, size in self._split.inputs() if path in paths}
        for path in sorted(paths):
            if path not in sizes:
                raise DataError(
                    f"{self._split.folder}/{UNITS}: names {path}, which is not one of the dataset's inputs; verify the "
                    "dataset, and copy or prepare it again"
                )
            try:
                found = filesystem.size_of(path)
            except (OSError, ValueError) as error:  # ValueError: there is no such file system
                raise NotTraced(f"{path} cannot be read: {error}") from error
            if found is None:
                raise NotTraced(f"{path} no longer exists")
            if found != sizes[path]:
                raise NotTraced(f"{path} has changed from {sizes[path]:,} bytes to {found:,}")

    def _documents(
        self,
        units: Sequence[WorkUnit],
        wanted: Sequence[WorkUnit],
        size: int,
        max_bytes: int | None,
        max_seconds: float | None,
    ) -> Iterator[_UnitDocuments]:
        """Yields the documents of the `wanted` units in the split, while it reads all of `units`.

        Raises:
            TraceTooSlow: If, extrapolated from the batches so far, this takes longer than `max_seconds`. The first
                batch is not counted, since it loads the tokenizer. Also if the units are far larger than their `size`
                and `max_bytes`, so that a foreign dataset cannot make this run for hours.
        """
        numbers = {unit.index for unit in wanted}
        seen: dict[int, set[bytes]] = {}  # by repeat, since repeats of --mix are not duplicates of each other
        began, done = None, 0
        for unit in units:
            parts = [Documents(np.empty(0, np.int64), np.empty(0, np.int64))]
            names: list[str] = []
            places: list[int] = []
            for batch in read_unit(unit, self._input):
                if self._dedup:
                    batch = _without_duplicates(batch, seen.setdefault(unit.repeat, set()))
                if unit.index in numbers and batch.texts:
                    batch, documents = self._tokenizer.encode(batch)
                    chosen = self._choose(batch) == self._split_index
                    parts.append(documents.select(chosen))
                    places += batch.places[chosen].tolist()
                    names += [batch.name] * int(chosen.sum())
                if began is None:
                    began = time.monotonic()
                    continue
                done += int(batch.bytes.sum())
                if max_bytes is not None and done > _TOO_MANY_TIMES * max_bytes:
                    raise TraceTooSlow(
                        f"finding the documents requires tokenizing more than {done / 1e6:,.0f} MB"
                    )
                seconds = time.monotonic() - began
                expected = seconds * max(size, done) / max(1, done)
                if max_seconds is not None and seconds > 1 and expected > max_seconds:
                    raise TraceTooSlow(f"finding the documents would take about {expected:.0f} s")
            if unit.index in numbers:
                ids = np.concatenate([part.ids for part in parts])
                lengths = np.concatenate([part.lengths for part in parts])
                yield _UnitDocuments(unit, Documents(ids, lengths), names, places)


def _without_duplicates(batch: DocumentBatch, seen: set[bytes]) -> DocumentBatch:
    """Removes documents whose text was seen before, and adds the hashes of the others to `seen`."""
    hashes = [row.tobytes() for row in text_hashes(batch.texts)]
    dropped = []
    for index, text_hash in enumerate(hashes):
        if text_hash in seen:
            dropped.append(index)
        seen.add(text_hash)
    return batch.without(np.array(dropped, np.int64)) if dropped else batch


def _numbers_of(documents: Documents, position: int) -> np.ndarray:
    """Returns the numbers (int64 [tokens]) in a unit's stream of the tokens of a document.

    `position` is the document's number among those that have tokens. If there is no such document, returns none.
    """
    number = np.flatnonzero(documents.lengths > 0)[position : position + 1]
    return ranges(documents.starts[number], documents.lengths[number])


def _pack_numbers(
    found: Sequence[_UnitDocuments], config: Mapping[str, Any]
) -> list[tuple[np.ndarray, Tail | None]]:
    """Packs each unit again, with tokens' numbers in the stream of all units in place of their ids.

    Returns:
        The rows (int64 [rows, max_length]) and the tail of each unit.
    """
    packed = []
    first = 0
    for unit in found:
        numbers = np.arange(first, first + len(unit.documents.ids))
        first += len(numbers)
        packer = Packer(
            packing=config["packing"], max_length=config["max_length"], pad_id=_PADDING, keep_starts=False
        )
        blocks = [*packer.add(Documents(numbers, unit.documents.lengths))]
        last, tail = packer.finish()
        rows = [block.ids for block in (*blocks, last) if block is not None]
        packed.append((np.concatenate([np.empty((0, config["max_length"]), np.int64), *rows]), tail))
    return packed


def _parts(found: Sequence[_UnitDocuments], numbers: np.ndarray) -> Iterator[DocumentPart]:
    """Cuts a row into its documents.

    Args:
        found: The documents of the row's units.
        numbers: int64 [tokens], each token's number in the stream of all units.
    """
    # Documents are numbered over all units: their lengths, their units, and the number of each unit's first document.
    lengths = np.concatenate([unit.documents.lengths for unit in found])
    owners = np.repeat(np.arange(len(found)), [len(unit.names) for unit in found])
    firsts = np.cumsum([0, *(len(unit.names) for unit in found)])
    # A token's document is the first one that ends after it in the stream.
    ends = np.cumsum(lengths)
    document = np.searchsorted(ends, numbers, side="right")
    # A part ends where the document changes, or where tokens of the same document are skipped.
    bounds = np.flatnonzero((np.diff(document) != 0) | (np.diff(numbers) != 1)) + 1
    for first, end in zip([0, *bounds], [*bounds, len(numbers)], strict=True):
        index = int(document[first])
        unit = found[int(owners[index])]
        within = index - int(firsts[owners[index]])
        tokens = int(lengths[index])
        offset = int(numbers[first] - (ends[index] - tokens))
        yield DocumentPart(
            int(first), int(end), unit.unit, unit.names[within], unit.places[within], offset, tokens
        )
