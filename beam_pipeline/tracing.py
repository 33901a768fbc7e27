"""From a record to the very documents it was made of: its unit is read, tokenized and packed once more.

What is packed this time are not token ids but their numbers in the unit's stream, so that each position of the record
tells its document, whatever the packing. Then the ids at those numbers must be the record's: so nothing is named that
is not certain, and a source that has changed is noticed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from beam_pipeline import filesystem
from beam_pipeline.errors import DataError
from beam_pipeline.job import Job
from beam_pipeline.options import PrepareConfig, parse_prepare
from beam_pipeline.packing import Documents, Tail, pack, pack_tails
from beam_pipeline.reading import Origin, Row, Split
from beam_pipeline.rows import RowBlock
from beam_pipeline.sources import describe_place, read_unit
from beam_pipeline.sources.units import DocumentBatch, WorkUnit
from beam_pipeline.tokenization.description import TokenizerDescription, describe_tokenizer
from beam_pipeline.tokenization.documents import DocumentTokenizer
from beam_pipeline.unit_rows import SplitChooser, text_hashes

# `--trace auto` gives up where it would take longer, judged by the first batch of documents.
_AUTO_SECONDS = 10.0

_PADDING = -1


class NotTraced(Exception):
    """The documents of a record are not known; the message says why."""


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


def trace(split: Split, origin: Origin, row: Row, when: str) -> list[DocumentPart]:
    """The documents of a row, in its order.

    Args:
      split: the row's split.
      origin: where the row came from.
      row: the record.
      when: `never`, `always`, or `auto`: only where that takes a few seconds at most.

    Raises:
      NotTraced: where that is not asked for, would take long, or the source is not what it was.
    """
    if when == "never":
        raise NotTraced("to its work unit only (--trace never)")
    tracer = _Tracer(split)
    of_tails = origin.unit is None
    # The tails of all units were packed together, and what is a duplicate depends on all units before.
    last = len(split.units) if of_tails else origin.unit_index + 1
    read = split.units[:last] if of_tails or tracer.dedup else [origin.unit]
    size = tracer.check_sources(read)
    try:
        found = list(tracer.documents(read, read if of_tails else [origin.unit], size, when == "auto"))
    except DataError as error:
        raise NotTraced(f"to its work unit only: {error}") from error
    packed = _pack_numbers(found, tracer.job)
    rows = pack_tails([tail for _, tail in packed], tracer.job.config.max_length, _PADDING, False)
    numbers = (rows if of_tails else packed[0][0]).ids[origin.position :][:1]
    numbers = numbers[numbers != _PADDING]
    stream = np.concatenate([unit.documents.ids for unit in found])
    if not np.array_equal(stream[numbers], row.ids):
        raise NotTraced("to its work unit only: the source gives other tokens now, so it has changed since")
    return list(_parts(found, numbers))


class _Tracer:
    """The dataset's run, as far as its documents' tokens depend on it."""

    def __init__(self, split: Split):
        self._split = split
        tokenizer = describe_tokenizer(split.tokenizer_folder)
        self.job = job_of(split, tokenizer)
        self._tokenizer = DocumentTokenizer(
            tokenizer_json=tokenizer.json,
            vocab_size=tokenizer.vocab_size,
            template=tokenizer.template,
            engine="auto",
        )
        config = self.job.config
        self._choose = SplitChooser(config.splits, config.seed, config.split_by)

    @property
    def dedup(self) -> bool:
        return self.job.config.dedup != "none"

    def check_sources(self, units: Sequence[WorkUnit]) -> int:
        """The size of the units' files; raises NotTraced where they are not as they were."""
        sizes = {file["path"]: file["bytes"] for file in self._split.manifest["inputs"]}
        paths = sorted({unit.root + part.name for unit in units for part in unit.parts})
        for path in paths:
            found = dict(filesystem.match(path)).get(path)
            if found is None:
                raise NotTraced(f"to its work unit only: {path} is not there any more")
            if found != sizes[path]:
                raise NotTraced(
                    f"to its work unit only: {path} has changed, from {sizes[path]:,} bytes to {found:,}"
                )
        return sum(sizes[path] for path in paths)

    def documents(
        self, units: Sequence[WorkUnit], wanted: Sequence[WorkUnit], size: int, in_time: bool
    ) -> Iterator[_UnitDocuments]:
        """What the `wanted` units gave to the split; all are read, since duplicates depend on those before.

        Raises NotTraced where it must be done `in_time` and would not be.
        """
        split = self.job.config.split_names.index(self._split.name)
        seen: set[bytes] = set()
        began, done = time.monotonic(), 0
        for unit in units:
            parts = [Documents(np.empty(0, np.int64), np.empty(0, np.int64))]
            names: list[str] = []
            places: list[int] = []
            for batch in read_unit(unit, self.job.read_options):
                done += int(batch.bytes.sum())
                if self.dedup:
                    batch = _first_of_their_text(batch, seen)
                if unit in wanted and batch.texts:
                    chosen = self._choose(batch) == split
                    parts.append(self._tokenizer.encode(batch.texts).select(chosen))
                    places += batch.places[chosen].tolist()
                    names += [batch.name] * int(chosen.sum())
                seconds = time.monotonic() - began
                expected = seconds * size / max(1, done)
                if in_time and seconds > 1 and expected > _AUTO_SECONDS:
                    raise NotTraced(
                        f"to its work unit only: to find the documents takes about {expected:.0f} s; "
                        "--trace always does"
                    )
            if unit in wanted:
                ids = np.concatenate([part.ids for part in parts])
                lengths = np.concatenate([part.lengths for part in parts])
                yield _UnitDocuments(unit, Documents(ids, lengths), names, places)


def job_of(split: Split, tokenizer: TokenizerDescription) -> Job:
    """The run that made a split, from its manifest: whatever decides the dataset's bytes is as it was."""
    recorded: Mapping[str, Any] = split.manifest["config"]
    defaults, _ = parse_prepare(["--input", "", "--tokenizer", "", "--output", ""])
    splits = tuple((name, recorded["splits"][name]) for name in split.manifest["splits"])
    config = replace(
        _with_recorded(defaults, recorded), input=_with_recorded(defaults.input, recorded), splits=splits
    )
    return Job(
        config=config,
        output=split.folder.rstrip("/").rpartition("/")[0],
        fingerprint=split.manifest["fingerprint"],
        num_units=len(split.units),
        input_bytes=sum(file["bytes"] for file in split.manifest["inputs"]),
        vocab_size=tokenizer.vocab_size,
        pad_id=tokenizer.require("pad", "padding"),
        template=tokenizer.template,
        progress=None,
    )


def _with_recorded(config: PrepareConfig, recorded: Mapping[str, Any]) -> Any:
    names = {field.name for field in fields(config)}
    return replace(config, **{name: value for name, value in recorded.items() if name in names})


def _first_of_their_text(batch: DocumentBatch, seen: set[bytes]) -> DocumentBatch:
    """The batch less the documents whose text was seen before; adds the others' to `seen`."""
    hashes = [row.tobytes() for row in text_hashes(batch.texts)]
    dropped = []
    for index, text_hash in enumerate(hashes):
        if text_hash in seen:
            dropped.append(index)
        seen.add(text_hash)
    return batch.without(np.array(dropped, np.int64)) if dropped else batch


def _pack_numbers(found: Sequence[_UnitDocuments], job: Job) -> list[tuple[RowBlock, Tail]]:
    """The rows and the tail of each unit, with the tokens' numbers, counted over all of them, in place of ids."""
    packed = []
    first = 0
    for unit in found:
        numbers = np.arange(first, first + len(unit.documents.ids))
        first += len(numbers)
        packed.append(
            pack(
                Documents(numbers, unit.documents.lengths),
                packing=job.config.packing,
                max_length=job.config.max_length,
                pad_id=_PADDING,
                keep_starts=False,
            )
        )
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
