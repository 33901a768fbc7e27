"""From a record to the very documents it was made of: its unit is read, tokenized and packed once more.

What is packed this time are not token ids but their numbers in the unit's stream, so that each position of the record
tells its document, whatever the packing. Then the ids at those numbers must be the record's: so nothing is named that
is not certain, and a source that has changed is noticed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from beam_pipeline import filesystem
from beam_pipeline.dataset.manifest import split_shares
from beam_pipeline.errors import DataError
from beam_pipeline.hashing import text_hashes
from beam_pipeline.input_options import InputConfig
from beam_pipeline.rows.packing import Packer, Tail
from beam_pipeline.rows.split_chooser import SplitChooser
from beam_pipeline.sources import describe_place, read_unit
from beam_pipeline.sources.units import DocumentBatch, WorkUnit
from beam_pipeline.tokenization.description import describe_tokenizer
from beam_pipeline.tokenization.documents import DocumentTokenizer
from beam_pipeline.tokenization.token_arrays import Documents
from beam_pipeline.views.reading import Origin, Row, Split

_PADDING = -1


class NotTraced(Exception):
    """The documents of a record are not known; the message says why."""


class TraceTooSlow(NotTraced):
    """To find them would take longer than is allowed."""


@dataclass(frozen=True)
class DocumentPart:
    """A part of a row that is (a part of) one document.

    Attributes:
      first, end: the half-open range of its tokens in the row.
      unit, name, place: where the document stands, as in `DocumentBatch`.
      offset: the number, within the document, of the first of these tokens.
      tokens: how many the whole document has.
    """

    first: int
    end: int
    unit: WorkUnit
    name: str
    place: int
    offset: int
    tokens: int

    @property
    def whole(self) -> bool:
        return self.end - self.first == self.tokens

    def describe(self) -> str:
        """Where the document stands, and which part of it this is."""
        place = describe_place(self.unit, self.name, self.place)
        if self.whole:
            return f"{place}, whole"
        last = self.offset + self.end - self.first - 1
        return f"{place}, its tokens {self.offset:,} to {last:,} of {self.tokens:,}"


@dataclass(frozen=True)
class _UnitDocuments:
    """What a unit gave to the split, with each document's file and place."""

    unit: WorkUnit
    documents: Documents
    names: list[str]
    places: list[int]


class Tracer:
    """Traces the rows of one split.

    Args:
      split: the split, finished.
    """

    def __init__(self, split: Split):
        self._split = split
        config = split.manifest["config"]
        tokenizer = describe_tokenizer(split.tokenizer_folder)
        self._template = tokenizer.template_of(config["append_eos"])
        self._tokenizer = DocumentTokenizer(
            tokenizer_json=tokenizer.json,
            vocab_size=tokenizer.vocab_size,
            template=self._template,
            engine="auto",
            parse_special_tokens=config["parse_special_tokens"],
            control_ids=tokenizer.control_ids,
        )
        self._choose = SplitChooser(split_shares(split.manifest), config["seed"], config["split_by"])
        self._split_index = split.manifest["splits"].index(split.name)
        self._input = InputConfig(
            document=config["document"], text_key=config["text_key"], seed=config["seed"]
        )
        self._last: tuple[tuple[WorkUnit, ...], list[_UnitDocuments]] | None = None

    def trace(
        self, origin: Origin, row: Row, *, most_bytes: int | None = None, most_seconds: float | None = None
    ) -> list[DocumentPart]:
        """The documents of a row, in its order.

        Args:
          origin: where the row came from.
          row: the record.
          most_bytes: how much of the source may be read again.
          most_seconds: how long that may take, about.

        Raises:
          NotTraced: where more is needed than that, or the source is not what it was.
        """
        found = self._unit_documents(origin, most_bytes, most_seconds)
        packed = _pack_numbers(found, self._split.manifest["config"])
        if origin.is_of_tails:
            joined = np.concatenate([tail.ids for _, tail in packed if tail is not None])
            numbers = joined[origin.skip :][: self._split.manifest["max_length"]]
        else:
            numbers = packed[0][0][origin.position :][:1]
            numbers = numbers[numbers != _PADDING]
        stream = np.concatenate([unit.documents.ids for unit in found])
        if not np.array_equal(stream[numbers], row.ids):
            raise NotTraced("the source gives other tokens now: it has changed since")
        return list(_parts(found, numbers))

    def starts(self, origin: Origin, row: Row) -> np.ndarray | None:
        """Where each document's part begins in the row, as far as that is known without its source.

        As the record says, or as the special tokens around each document tell, if they can only stand there.
        """
        config, prefix, suffix = self._split.manifest["config"], self._template.prefix, self._template.suffix
        if row.starts is not None:
            return row.starts
        if config["packing"] == "pad":
            return np.zeros(1, np.int64)
        in_text = config["parse_special_tokens"] or set(prefix) & set(suffix)
        # Parts that neither begin nor end their document meet in the tails; with best_fit, ends of documents that are
        # longer than a row stand behind others.
        unmarked = origin.is_of_tails or (config["packing"] == "best_fit" and not suffix)
        if in_text or unmarked or not (prefix or suffix):
            return None
        begins = np.flatnonzero(row.ids == prefix[0]) if prefix else np.empty(0, np.int64)
        after = np.flatnonzero(row.ids[:-1] == suffix[-1]) + 1 if suffix else np.empty(0, np.int64)
        return np.union1d(np.union1d(begins, after), [0])

    def _unit_documents(
        self, origin: Origin, most_bytes: int | None, most_seconds: float | None
    ) -> list[_UnitDocuments]:
        """The documents of the row's units."""
        wanted = origin.units
        if self._last is not None and self._last[0] == wanted:
            return self._last[1]
        # What is a duplicate depends on all units before.
        read = self._split.units[: wanted[-1].index + 1] if self._dedup else wanted
        size = sum(unit.bytes for unit in read)
        if most_bytes is not None and size > most_bytes:
            raise TraceTooSlow(f"to find the documents, {size / 1e6:,.0f} MB must be tokenized again")
        self._check_sources(read)
        try:
            documents = list(self._documents(read, wanted, size, most_seconds))
        except DataError as error:
            raise NotTraced(str(error)) from error
        self._last = (wanted, documents)
        return documents

    @property
    def _dedup(self) -> bool:
        return self._split.manifest["config"]["dedup"] != "none"

    def _check_sources(self, units: Sequence[WorkUnit]) -> None:
        """Raises NotTraced where the units' files are not as they were."""
        sizes = {file["path"]: file["bytes"] for file in self._split.manifest["inputs"]}
        for path in sorted({unit.root + part.name for unit in units for part in unit.parts}):
            found = filesystem.size_of(path)
            if found is None:
                raise NotTraced(f"{path} is not there any more")
            if found != sizes[path]:
                raise NotTraced(f"{path} has changed, from {sizes[path]:,} bytes to {found:,}")

    def _documents(
        self,
        units: Sequence[WorkUnit],
        wanted: Sequence[WorkUnit],
        size: int,
        most_seconds: float | None,
    ) -> Iterator[_UnitDocuments]:
        """What the `wanted` units gave to the split; all are read, since duplicates depend on those before.

        Raises NotTraced where that would take longer than `most_seconds`, judged by the first batches.
        """
        numbers = {unit.index for unit in wanted}
        seen: dict[int, set[bytes]] = {}  # by repeat: a mixture's repeats are no duplicates of each other
        began, done = time.monotonic(), 0
        for unit in units:
            parts = [Documents(np.empty(0, np.int64), np.empty(0, np.int64))]
            names: list[str] = []
            places: list[int] = []
            for batch in read_unit(unit, self._input):
                done += int(batch.bytes.sum())
                if self._dedup:
                    batch = _first_of_their_text(batch, seen.setdefault(unit.repeat, set()))
                if unit.index in numbers and batch.texts:
                    chosen = self._choose(batch) == self._split_index
                    parts.append(self._tokenizer.encode(batch).select(chosen))
                    places += batch.places[chosen].tolist()
                    names += [batch.name] * int(chosen.sum())
                seconds = time.monotonic() - began
                expected = seconds * size / max(1, done)
                if most_seconds is not None and seconds > 1 and expected > most_seconds:
                    raise TraceTooSlow(f"to find the documents would take about {expected:.0f} s")
            if unit.index in numbers:
                ids = np.concatenate([part.ids for part in parts])
                lengths = np.concatenate([part.lengths for part in parts])
                yield _UnitDocuments(unit, Documents(ids, lengths), names, places)


def _first_of_their_text(batch: DocumentBatch, seen: set[bytes]) -> DocumentBatch:
    """The batch less the documents whose text was seen before; adds the others' to `seen`."""
    hashes = [row.tobytes() for row in text_hashes(batch.texts)]
    dropped = []
    for index, text_hash in enumerate(hashes):
        if text_hash in seen:
            dropped.append(index)
        seen.add(text_hash)
    return batch.without(np.array(dropped, np.int64)) if dropped else batch


def _pack_numbers(
    found: Sequence[_UnitDocuments], config: Mapping[str, Any]
) -> list[tuple[np.ndarray, Tail | None]]:
    """The rows (int64 [rows, max_length]) and the tail of each unit, with the tokens' numbers, counted over all of
    them, in place of ids."""
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
    """The stretches of a row that are of one document each."""
    lengths = np.concatenate([unit.documents.lengths for unit in found])
    owners = np.repeat(np.arange(len(found)), [len(unit.names) for unit in found])
    before = np.cumsum([0, *(len(unit.names) for unit in found)])
    ends = np.cumsum(lengths)
    document = np.searchsorted(ends, numbers, side="right")
    meets = np.flatnonzero((np.diff(document) != 0) | (np.diff(numbers) != 1)) + 1
    for first, end in zip([0, *meets], [*meets, len(numbers)], strict=True):
        index = int(document[first])
        unit = found[int(owners[index])]
        within = index - int(before[owners[index]])
        tokens = int(lengths[index])
        offset = int(numbers[first] - (ends[index] - tokens))
        yield DocumentPart(
            int(first), int(end), unit.unit, unit.names[within], unit.places[within], offset, tokens
        )
