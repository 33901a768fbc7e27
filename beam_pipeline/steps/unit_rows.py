"""Turns one work unit's documents into the rows, tail and statistics of each split."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from beam_pipeline.conversations.tokenizer import AnyTokenizer
from beam_pipeline.dataset.statistics import SplitStatistics
from beam_pipeline.rows.blocks import RowBlock
from beam_pipeline.rows.documents import DocumentBlock
from beam_pipeline.rows.packing import Packer, Tail
from beam_pipeline.rows.split_chooser import SplitChooser
from beam_pipeline.sources.record_columns import column_table
from beam_pipeline.sources.units import BadRecord, DocumentBatch


class UnitRows:
    """Tokenizes and packs one unit. Exhaust `blocks` before you read the other attributes.

    Args:
        tokenizer: Encodes the documents.
        choose: Chooses the split of each document.
        packers: The packer of each split.
        vocab_size: The number of ids in the tokenizer's vocabulary.
        on_bad: Called with each bad record, in order; it may raise.
        record_columns: The columns of records that rows get.
    """

    def __init__(
        self,
        *,
        tokenizer: AnyTokenizer,
        choose_split: SplitChooser,
        packers: Sequence[Packer],
        vocab_size: int,
        on_bad: Callable[[BadRecord], None],
        record_columns: Sequence[str] = (),
    ):
        self._tokenizer = tokenizer
        self._choose_split = choose_split
        self._packers = packers
        self._on_bad = on_bad
        self._record_columns = record_columns
        self.statistics = [SplitStatistics.empty(vocab_size) for _ in packers]
        """The statistics of each split."""
        self.tails: list[Tail | None] = [None] * len(packers)
        """The tail of each split, or None if it has no tail."""
        self.overlong = 0
        """The number of conversations that a row is too short for."""

    def blocks(self, batches: Iterable[DocumentBatch]) -> Iterator[tuple[int, RowBlock | DocumentBlock]]:
        """Packs the unit's documents, given in order; yields (the split's index, its next rows)."""
        for batch in batches:
            batch, documents = self._tokenizer.encode(batch)
            if self._record_columns:
                documents = replace(documents, columns=column_table(batch.columns, self._record_columns))
            self.overlong += batch.overlong
            for record in batch.bad_records:
                self._on_bad(record)
            splits = self._choose_split(batch)
            for split, packer in enumerate(self._packers):
                in_split = splits == split
                if in_split.any():
                    split_documents = documents.select(in_split)
                    self.statistics[split].add_documents(
                        split_documents.ids, split_documents.lengths, batch.texts.sizes[in_split]
                    )
                    for block in packer.add(split_documents):
                        yield from self._add_rows(split, block)
        for split, packer in enumerate(self._packers):
            block, self.tails[split] = packer.finish()
            if block is not None:
                yield from self._add_rows(split, block)

    def _add_rows(
        self, split: int, block: RowBlock | DocumentBlock
    ) -> Iterator[tuple[int, RowBlock | DocumentBlock]]:
        if len(block):
            self.statistics[split].add_rows(block)
            yield split, block
