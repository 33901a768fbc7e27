"""Rows whose targets are given: texts of which a model is to say how likely they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tokenmill_reader.dataset import Rows
from tpu_trainer.data.batches import EvaluationRows
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.data.words import Words

NO_TARGET = -1


@dataclass(frozen=True, kw_only=True)
class TargetRow:
    """A row without padding."""

    inputs: np.ndarray
    """The ids that the model reads, int32[n]."""
    targets: np.ndarray
    """The id to predict at each position, or NO_TARGET, int32[n]."""


def causal_row(before: Sequence[int], tokens: Sequence[int], *, max_length: int) -> TargetRow:
    """Returns the row in which a causal model predicts `tokens` after the tokens `before` them.

    Like lm-eval's models, it reads the last `max_length` of them without the very last, which is only predicted.

    Args:
        before: One id at least; the first ones are cut if all do not fit.
        tokens: Up to `max_length` ids.
        max_length: Tokens that the model reads.

    >>> row = causal_row([5, 6, 7], [8, 9], max_length=3)
    >>> row.inputs.tolist(), row.targets.tolist()
    ([6, 7, 8], [-1, 8, 9])
    """
    ids = np.array([*before, *tokens], np.int32)[-(max_length + 1) :]
    targets = ids[1:].copy()
    targets[: len(targets) - len(tokens)] = NO_TARGET
    return TargetRow(inputs=ids[:-1], targets=targets)


def masked_rows(
    ids: np.ndarray, is_special: np.ndarray, *, mask_id: int, words: Words | None = None
) -> list[TargetRow]:
    """Returns the rows in which a masked model predicts one token of a text after the other: its pseudo-likelihood.

    That of Salazar et al. 2020 (https://arxiv.org/abs/1910.14659) masks a token alone. With `words`, the later tokens
    of its word are masked, too, as in Kauf and Ivanova 2023 (https://arxiv.org/abs/2305.10588): otherwise rare words,
    which have many tokens, would be too likely, since a part of a word gives away the others.

    Args:
        ids: The text's, with special tokens, int32[n].
        is_special: Whether a token is special and so not predicted, bool[n].
        mask_id: The mask token's.
        words: Where words begin.

    >>> words = Words(starts_inside_word=np.arange(10) == 8, ends_inside_word=np.full(10, True))
    >>> text, special = np.array([0, 7, 8, 9, 2]), np.array([True, False, False, False, True])
    >>> [row.inputs.tolist() for row in masked_rows(text, special, mask_id=4)]
    [[0, 4, 8, 9, 2], [0, 7, 4, 9, 2], [0, 7, 8, 4, 2]]
    >>> [row.inputs.tolist() for row in masked_rows(text, special, mask_id=4, words=words)]
    [[0, 4, 4, 9, 2], [0, 7, 4, 9, 2], [0, 7, 8, 4, 2]]
    """
    continues = np.zeros(len(ids), bool)
    if words is not None:
        continues[1:] = words.starts_inside_word[ids[1:]] & words.ends_inside_word[ids[:-1]] & ~is_special[1:]
    # The place after a word: of the next token that does not continue it.
    starts = np.append(np.flatnonzero(~continues), len(ids))
    rows = []
    for place in np.flatnonzero(~is_special):
        end = place + 1 if words is None else starts[np.searchsorted(starts, place, side="right")]
        inputs, targets = ids.astype(np.int32), np.full(len(ids), NO_TARGET, np.int32)
        inputs[place:end], targets[place] = mask_id, ids[place]
        rows.append(TargetRow(inputs=inputs, targets=targets))
    return rows


class PaddedRows:
    """Rows in memory, padded to one length, which are read like those of a split."""

    features = ("input_ids", "attention_mask", "targets")

    def __init__(self, rows: Sequence[TargetRow], *, length: int, pad_id: int) -> None:
        """`length`: the length to pad to."""
        self.max_length = length
        shape = (len(rows), length)
        ids, mask, targets = (np.full(shape, value, np.int32) for value in (pad_id, 0, NO_TARGET))
        for number, row in enumerate(rows):
            count = len(row.inputs)
            ids[number, :count], mask[number, :count], targets[number, :count] = row.inputs, 1, row.targets
        self._arrays = dict(zip(self.features, (ids, mask, targets), strict=True))

    def __len__(self) -> int:
        """The number of rows."""
        return len(self._arrays["targets"])

    def __getitem__(self, rows: np.ndarray) -> Rows:
        """Returns rows, as `Dataset.__getitem__` does."""
        return {name: values[rows] for name, values in self._arrays.items()}

    def read_ahead(self, rows: np.ndarray) -> None:
        """Does nothing: all rows are in memory."""


class TargetBatches(EvaluationRows):
    """Batches of padded rows with their targets, for objectives.GivenTargets."""

    def __init__(self, rows: PaddedRows, *, batch_size: int, vocabulary: Vocabulary) -> None:
        super().__init__(rows, batch_size=batch_size, vocabulary=vocabulary)
        self._names = list(rows.features)
