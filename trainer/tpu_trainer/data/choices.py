"""Multiple-choice items as rows: a row for each choice, whose tokens are the targets of the loss."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokenmill_reader.dataset import Rows
from tpu_trainer.support import files
from tpu_trainer.support.errors import UsageError

_OPTIONAL = ("attention_mask", "position_ids", "segment_ids")
Encode = Callable[[str], list[int]]
"""Returns the ids of a text, without special tokens."""


@dataclass(frozen=True, kw_only=True)
class Item:
    """A question with choices."""

    context: str
    choices: list[str]
    answer: int
    """The number of the right choice."""


def read_items(path: str) -> list[Item]:
    """Reads a JSON-lines file with an object {"context": …, "choices": […], "answer": …} in each line.

    Raises:
        UsageError: If the file cannot be read, has no item, or a line has another form.
    """
    if not files.is_file(path):
        raise UsageError(f"--data.choices: {path}: no such file")
    lines = files.read_bytes(path).splitlines()
    items = [_item(line, f"{path}, line {number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not items:
        raise UsageError(f"--data.choices: {path}: no items; each line has one")
    return items


def _item(line: bytes, place: str) -> Item:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:  # broken JSON or broken UTF-8
        raise UsageError(f"{place}: not JSON ({error})") from error
    form = '{"context": "a text", "choices": ["one", "two"], "answer": 0}, where answer is the number of a choice'
    if not isinstance(value, dict):
        raise UsageError(f"{place}: not an item, such as {form}")
    context, choices, answer = (value.get(name) for name in ("context", "choices", "answer"))
    are_texts = isinstance(choices, list) and all(isinstance(choice, str) and choice for choice in choices)
    if (
        not isinstance(context, str)
        or not are_texts
        or type(answer) is not int
        or not 0 <= answer < len(choices)
    ):
        raise UsageError(f"{place}: not an item, such as {form}")
    return Item(context=context, choices=choices, answer=answer)


class ChoiceRows:
    """The choices of items as rows in memory, which are read like those of a split."""

    features: tuple[str, ...]
    """Those of the training data that such rows have, and loss_mask."""

    def __init__(
        self,
        items: Sequence[Item],
        *,
        path: str,
        encode: Encode,
        prefix: int | None,
        max_length: int,
        features: Sequence[str],
    ) -> None:
        """
        Args:
            items: At least one.
            path: Their file.
            encode: The tokenizer's.
            prefix: The id before a choice without context; None: the tokenizer has no such token.
            max_length: Tokens in a row. The beginning of a longer context is left out.
            features: Those of the training data.

        Raises:
            UsageError: If a choice has no token before it, or does not fit into a row.
        """
        self.items, self.path, self.max_length = items, path, max_length
        self.features = ("input_ids", *(name for name in _OPTIONAL if name in features), "loss_mask")
        count = sum(len(item.choices) for item in items)
        self._ids, self._mask, self._targets = (np.zeros((count, max_length), np.int32) for _ in range(3))
        row = 0
        for item in items:
            context = encode(item.context)
            for choice in item.choices:
                whole = encode(item.context + choice)
                # Where the context's last token joins the choice's text, as in EleutherAI's lm-eval.
                tokens = whole[len(context) :]
                before = whole[: len(context)] or ([] if prefix is None else [prefix])
                kept = max_length - len(tokens)
                if not tokens or not before or kept < 1:
                    raise UsageError(
                        f"{path}: the choice {choice!r:.80} after {item.context!r:.80} has {len(tokens)} tokens after "
                        f"{len(before)}: a row of {max_length} needs at least one of both"
                    )
                ids = before[-kept:] + tokens
                self._ids[row, : len(ids)], self._mask[row, : len(ids)] = ids, 1
                self._targets[row, len(ids) - len(tokens) : len(ids)] = 1
                row += 1

    def __len__(self) -> int:
        """The number of choices."""
        return len(self._ids)

    def __getitem__(self, rows: np.ndarray) -> Rows:
        """Returns rows, as `Dataset.__getitem__` does."""
        positions = np.broadcast_to(np.arange(self.max_length, dtype=np.int32), self._ids.shape)
        values: dict[str, Any] = {
            "input_ids": self._ids,
            "attention_mask": self._mask,
            "position_ids": positions,
            "segment_ids": self._mask,
            "loss_mask": self._targets,
        }
        return {name: values[name][rows] for name in self.features}

    def read_ahead(self, rows: np.ndarray) -> None:
        """Does nothing: all rows are in memory."""

    def accuracy(self, losses: np.ndarray) -> tuple[float, float]:
        """Returns the share of items whose likeliest choice is the answer, and the same by likelihood per byte.

        Args:
            losses: The cross-entropy of each choice, in nats, float64[rows].
        """
        right = np.zeros(2)
        start = 0
        for item in self.items:
            own = losses[start : start + len(item.choices)]
            lengths = [len(choice.encode()) for choice in item.choices]
            right += [own.argmin() == item.answer, (own / lengths).argmin() == item.answer]
            start += len(item.choices)
        return tuple((right / len(self.items)).tolist())
