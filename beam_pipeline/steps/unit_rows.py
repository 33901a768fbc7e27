"""One work unit's documents → each split's rows, tail and statistics: what the pipeline's first step does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from beam_pipeline.dataset.statistics import SplitStatistics
from beam_pipeline.rows.blocks import RowBlock
from beam_pipeline.rows.packing import Packer, Tail
from beam_pipeline.rows.split_chooser import SplitChooser
from beam_pipeline.sources.units import DocumentBatch
from beam_pipeline.tokenization.documents import DocumentTokenizer


class UnitRows:
    """Tokenizes and packs one unit. When `blocks` has ended, the rest of what the unit gave can be read off.

    Args:
      tokenizer: makes ids of texts.
      choose: sends documents to splits.
      packers: a new one for each split.
      vocab_size: ids are below it.

    Attributes:
      statistics: of each split.
      tails: of each split; None where nothing is left.
    """

    def __init__(
        self,
        *,
        tokenizer: DocumentTokenizer,
        choose: SplitChooser,
        packers: Sequence[Packer],
        vocab_size: int,
    ):
        self._tokenizer = tokenizer
        self._choose = choose
        self._packers = packers
        self.statistics = [SplitStatistics.empty(vocab_size) for _ in packers]
        self.tails: list[Tail | None] = [None] * len(packers)

    def blocks(self, batches: Iterable[DocumentBatch]) -> Iterator[tuple[int, RowBlock]]:
        """The rows of the unit's documents, which come in order: (the split's index, its next rows)."""
        for batch in batches:
            documents = self._tokenizer.encode(batch)
            splits = self._choose(batch)
            for split, packer in enumerate(self._packers):
                chosen = splits == split
                if chosen.any():
                    part = documents.select(chosen)
                    self.statistics[split].add_documents(part.ids, part.lengths, batch.bytes[chosen])
                    for block in packer.add(part):
                        yield from self._counted(split, block)
        for split, packer in enumerate(self._packers):
            block, self.tails[split] = packer.finish()
            if block is not None:
                yield from self._counted(split, block)

    def _counted(self, split: int, block: RowBlock) -> Iterator[tuple[int, RowBlock]]:
        if len(block):
            self.statistics[split].add_rows(block)
            yield split, block
