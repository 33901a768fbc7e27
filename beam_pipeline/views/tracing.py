"""Traces a record to its exact documents by reading, tokenizing and packing its unit again.

This time the packer gets each token's number in the unit's stream instead of its id. Each position of the record then
identifies its document, whatever the packing. Finally, the ids at these numbers must equal the record's ids. This
proves the result, and detects a source that has changed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from beam_pipeline.conversations.chat_format import chat_format
from beam_pipeline.conversations.tokenizer import AnyTokenizer, LengthLimit, make_tokenizer
from beam_pipeline.curation.decisions import Decision
from beam_pipeline.curation.removals import PII, Removals
from beam_pipeline.dataset import removed_documents
from beam_pipeline.dataset.manifest import split_shares
from beam_pipeline.dataset.removed_documents import read_removed, removed_path
from beam_pipeline.engines.infilling import infilling_of
from beam_pipeline.engines.token_arrays import Documents, ids_of
from beam_pipeline.options.curation_options import CurationConfig
from beam_pipeline.options.input_options import NOT_IN_ALL_MANIFESTS, InputConfig
from beam_pipeline.rows.split_chooser import SplitChooser
from beam_pipeline.sources.reading import read_unit
from beam_pipeline.sources.units import DocumentBatch, WorkUnit
from beam_pipeline.steps.curate import cut_passages, edit, make_decisions
from beam_pipeline.support import filesystem
from beam_pipeline.support.errors import DataError, UserError
from beam_pipeline.support.hashing import text_hashes
from beam_pipeline.tokenization.description import describe_tokenizer
from beam_pipeline.views.reading import FinishedSplit, Origin, Row
from beam_pipeline.views.row_parts import (
    PADDING,
    DocumentPart,
    UnitDocuments,
    cut_row,
    numbers_of,
    pack_numbers,
)
from tokenmill_reader.format.names import UNITS

_LEAST_ROWS = 64  # that are found at a time
_MAX_EXCESS = 16  # units of compressed files may have more bytes than estimated


class NotTraced(Exception):
    """The documents of a record cannot be determined; the message has the reason."""


class TraceTooSlow(NotTraced):
    """Finding the documents would take longer than allowed."""


def input_options(split: FinishedSplit) -> InputConfig:
    """Returns the options that determine how a dataset's units were read."""
    config = split.manifest["config"]
    return InputConfig(
        document=config["document"],
        text_key=config["text_key"],
        **{name: config[name] for name in NOT_IN_ALL_MANIFESTS if name in config},
        seed=config["seed"],
    )


class Tracer:
    """Traces the rows of one split."""

    def __init__(self, split: FinishedSplit):
        self._split = split
        config = split.manifest["config"]
        self._description = describe_tokenizer(split.tokenizer_folder)
        self._template = self._description.template_of(config["append_eos"])
        self._choose_split = SplitChooser(split_shares(split.manifest), config["seed"], config["split_by"])
        self._split_index = split.manifest["splits"].index(split.name)
        self._input = input_options(split)
        self._cached: tuple[tuple[WorkUnit, ...], int | None, list[UnitDocuments]] | None = None

    @cached_property
    def _tokenizer(self) -> AnyTokenizer:
        """The tokenizer, loaded on first use: an engine takes a second to load, and most units are too large."""
        config = self._split.manifest["config"]
        chat = limit = None
        if self._split.has_targets:
            chat = chat_format(self._description, loss_on=config["loss_on"], date=config.get("chat_date"))
            limit = LengthLimit(config["max_length"], config["overlong"])
        return make_tokenizer(
            chat=chat,
            limit=limit,
            infilling=infilling_of(config, self._description),
            tokenizer_json=self._description.json,
            vocab_size=self._description.vocab_size,
            template=self._template,
            engine="auto",
            parse_special_tokens=config["parse_special_tokens"],
            control_ids=self._description.control_ids,
        )

    def trace(
        self, origin: Origin, row: Row, *, max_bytes: int | None = None, max_seconds: float | None = None
    ) -> list[DocumentPart]:
        """Returns the documents of a row, in their order.

        Args:
            origin: The row's origin.
            row: The record.
            max_bytes: Largest number of bytes of the source to reread; None: no limit.
            max_seconds: Approximate limit of the time; None: no limit.

        Raises:
            TraceTooSlow: If a limit would be exceeded.
            NotTraced: If the source is missing or has changed.
            DataError: If the dataset is damaged.
        """
        rows = None
        if not origin.is_of_tails and self._split.manifest["config"]["packing"] != "best_fit":
            rows = max(_LEAST_ROWS, 1 << origin.position.bit_length())
        unit_documents = self.documents(origin.units, rows=rows, max_bytes=max_bytes, max_seconds=max_seconds)
        if self._split.manifest["config"]["packing"] == "none":
            numbers = numbers_of(unit_documents[0].documents, origin.position)
            return self._verified_parts(unit_documents, numbers, row)
        packed = pack_numbers(unit_documents, self._split.manifest["config"])
        if origin.is_of_tails:
            tail_numbers = np.concatenate([tail.ids for _, tail in packed if tail is not None])
            numbers = tail_numbers[origin.skipped_tokens :][: self._split.manifest["max_length"]]
        else:
            numbers = packed[0][0][origin.position :][:1]
            numbers = numbers[numbers != PADDING]
        return self._verified_parts(unit_documents, numbers, row)

    def _verified_parts(
        self, unit_documents: Sequence[UnitDocuments], numbers: np.ndarray, row: Row
    ) -> list[DocumentPart]:
        """Returns the documents of the tokens with these numbers, if the row consists of these tokens."""
        stream = np.concatenate([unit.documents.ids for unit in unit_documents])
        if not np.array_equal(stream[numbers], row.ids):
            raise NotTraced("the source has changed: it now gives other tokens")
        return list(cut_row(unit_documents, numbers))

    def starts(self, origin: Origin, row: Row) -> np.ndarray | None:
        """Returns the positions at which documents begin in the row, or None if they are unknown without the source.

        They are known if the record has them, or if special tokens surround each document and occur nowhere else.
        """
        config, prefix, suffix = self._split.manifest["config"], self._template.prefix, self._template.suffix
        if row.starts is not None:
            return row.starts
        if config["packing"] in ("pad", "none"):
            return np.zeros(1, np.int64)
        may_be_in_text = config["parse_special_tokens"] or set(prefix) & set(suffix)
        # In rows of tails, parts may be adjacent that neither begin nor end a document. With best_fit, the end of a
        # document that is longer than a row may follow another document.
        has_unmarked_parts = origin.is_of_tails or (config["packing"] == "best_fit" and not suffix)
        if may_be_in_text or has_unmarked_parts or not (prefix or suffix):
            return None
        prefix_starts = np.flatnonzero(row.ids == prefix[0]) if prefix else np.empty(0, np.int64)
        after_suffix = np.flatnonzero(row.ids[:-1] == suffix[-1]) + 1 if suffix else np.empty(0, np.int64)
        return np.union1d(np.union1d(prefix_starts, after_suffix), [0])

    def documents(
        self,
        row_units: tuple[WorkUnit, ...],
        *,
        rows: int | None = None,
        max_bytes: int | None = None,
        max_seconds: float | None = None,
    ) -> list[UnitDocuments]:
        """Returns the documents of work units in the split. The last result is kept. See `trace`.

        Args:
            row_units: The units.
            rows: The number of first rows, of a single unit, whose documents are enough. None: all documents.
            max_bytes: See `trace`.
            max_seconds: See `trace`.
        """
        if self._cached is not None and self._cached[0] == row_units:
            cached_rows = self._cached[1]
            if cached_rows is None or (rows is not None and rows <= cached_rows):
                return self._cached[2]
        # Datasets of earlier versions do not list their duplicates, which depend on all previous units.
        units_to_read = self._split.units[: row_units[-1].index + 1] if self._must_deduplicate else row_units
        size = sum(unit.bytes for unit in units_to_read)
        if rows is not None:
            unit = row_units[-1]
            unit_rows = max(1, int(self._split.row_table.rows[unit.index, 0]))
            size -= unit.bytes * max(0, unit_rows - rows) // unit_rows
        if max_bytes is not None and size > max_bytes:
            raise TraceTooSlow(f"finding the documents requires tokenizing {size / 1e6:,.0f} MB again")
        if self._split.manifest.keys() & {"removed", "edited"} and not _lists_removed(self._split):
            raise NotTraced("the list of removed documents, the folder removed/ of the dataset, is missing")
        self._check_sources(units_to_read)
        try:
            documents = list(self._documents(units_to_read, row_units, rows, size, max_bytes, max_seconds))
        except UserError as error:
            raise NotTraced(str(error)) from error
        self._cached = (row_units, rows, documents)
        return documents

    def _complete_rows(self, lengths: np.ndarray) -> int:
        """Returns how many rows documents with these numbers of tokens fill, at least."""
        packing, max_length = (self._split.manifest["config"][name] for name in ("packing", "max_length"))
        if packing == "none":
            return int(np.count_nonzero(lengths))
        if packing == "pad":
            return int((-(-lengths // max_length)).sum())
        return int(lengths.sum()) // max_length

    @property
    def _must_deduplicate(self) -> bool:
        return must_deduplicate(self._split)

    @cached_property
    def _curation(self) -> CurationConfig:
        return CurationConfig.of_manifest(self._split.manifest["config"])

    @cached_property
    def _decisions(self) -> list[Decision]:
        """The decisions of the run, for the edits of the texts."""
        return make_decisions(self._curation, edits_only=True)

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
                actual_size = filesystem.size_of(path)
            except (OSError, ValueError) as error:  # ValueError: there is no such file system
                raise NotTraced(f"{path} cannot be read: {error}") from error
            if actual_size is None:
                raise NotTraced(f"{path} no longer exists")
            if actual_size != sizes[path]:
                raise NotTraced(f"{path} has changed from {sizes[path]:,} bytes to {actual_size:,}")

    def _documents(
        self,
        units: Sequence[WorkUnit],
        row_units: Sequence[WorkUnit],
        rows: int | None,
        input_bytes: int,
        max_bytes: int | None,
        max_seconds: float | None,
    ) -> Iterator[UnitDocuments]:
        """Yields the documents of `row_units` in the split, or of its first rows, while it reads all of `units`.

        Raises:
            TraceTooSlow: If, extrapolated from the batches so far, this takes longer than `max_seconds`. The first
                batch is not counted, since it loads the tokenizer. Also if the units are far larger than `input_bytes`
                and `max_bytes`, so that a foreign dataset cannot make this run for hours.
        """
        numbers = {unit.index for unit in row_units}
        # Repeats of --mix are not duplicates of each other.
        hashes_by_repeat: dict[int, set[bytes]] = {}
        start_time, bytes_read = None, 0
        for unit in units:
            parts = [Documents(np.empty(0, np.int64), np.empty(0, np.int64))]
            names: list[str] = []
            places: list[int] = []
            listed, first = read_removed(removed_path(self._split.dataset, unit.index)), 0
            unread_rows = rows or 0
            for read in read_unit(unit, self._input, columns=self._curation.columns):
                unmasked = unmasked_documents(self._split, listed, first, len(read.texts))
                batch, _ = edit(unit, read, first, self._decisions, unmasked)
                if self._must_deduplicate:
                    batch = _without_duplicates(batch, hashes_by_repeat.setdefault(unit.repeat, set()))
                if listed is not None:
                    in_batch = listed.between(first, first + len(read.texts)).shifted(-first)
                    batch, _ = cut_passages(batch, in_batch)
                    batch = batch.without(in_batch.without_edits().documents)
                first += len(read.texts)
                if unit.index in numbers and batch.texts:
                    batch, documents = self._tokenizer.encode(batch)
                    in_split = self._choose_split(batch) == self._split_index
                    documents = replace(documents, ids=ids_of(documents.ids))
                    parts.append(documents.select(in_split))
                    places += batch.places[in_split].tolist()
                    names += [batch.name] * int(in_split.sum())
                    if rows is not None:
                        unread_rows -= self._complete_rows(parts[-1].lengths)
                        if unread_rows <= 0:
                            break
                if start_time is None:
                    start_time = time.monotonic()
                    continue
                bytes_read += int(batch.texts.sizes.sum())
                if max_bytes is not None and bytes_read > _MAX_EXCESS * max_bytes:
                    raise TraceTooSlow(
                        f"finding the documents requires tokenizing more than {bytes_read / 1e6:,.0f} MB"
                    )
                seconds = time.monotonic() - start_time
                expected_seconds = seconds * max(input_bytes, bytes_read) / max(1, bytes_read)
                if max_seconds is not None and seconds > 1 and expected_seconds > max_seconds:
                    raise TraceTooSlow(f"finding the documents would take about {expected_seconds:.0f} s")
            if unit.index in numbers:
                ids = np.concatenate([part.ids for part in parts])
                lengths = np.concatenate([part.lengths for part in parts])
                yield UnitDocuments(unit, Documents(ids, lengths), names, places)


def must_deduplicate(split: FinishedSplit) -> bool:
    """Returns whether reading a unit's documents requires all units before it, to know which are duplicates."""
    return split.manifest["excluded"]["duplicate_documents"] > 0 and not _lists_removed(split)


def _lists_removed(split: FinishedSplit) -> bool:
    return bool(filesystem.list_folder(filesystem.join(split.dataset, removed_documents.FOLDER)))


def _without_duplicates(batch: DocumentBatch, known_hashes: set[bytes]) -> DocumentBatch:
    """Removes documents whose text has a known hash, and adds the hashes of the others to `known_hashes`."""
    hashes = [row.tobytes() for row in text_hashes(batch.texts)]
    dropped = []
    for index, text_hash in enumerate(hashes):
        if text_hash in known_hashes:
            dropped.append(index)
        known_hashes.add(text_hash)
    return batch.without(np.array(dropped, np.int64)) if dropped else batch


def unmasked_documents(split: FinishedSplit, listed: Removals | None, first: int, count: int) -> np.ndarray:
    """Returns which documents of a batch keep their personal data: with `--restore`, all that are not listed.

    Args:
        split: The dataset.
        listed: The removals of the batch's unit; None if there are none.
        first: The number of the batch's first document in the unit.
        count: The number of documents in the batch.

    Returns:
        int64, their indices in the batch.
    """
    files = split.manifest["config"].get("filter_files", {})
    if not any(name.startswith("restore ") for name in files):
        return np.empty(0, np.int64)
    masked = (listed or Removals.empty()).of_rules([PII]).documents - first
    return np.setdiff1d(np.arange(count), masked)
