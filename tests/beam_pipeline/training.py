"""Training a tokenizer on texts in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from beam_pipeline.tokenization import training
from beam_pipeline.tokenization.word_counts import WordCounter, merge


def train(
    model: str,
    texts: Callable[[], Iterable[str]],
    *,
    normalize: bool = False,
    lowercase: bool = False,
    compiled: bool = True,
    **options: Any,
) -> training.TrainedTokenizer:
    """Counts the words of texts, and trains a tokenizer on them. See `training.train` for the options."""
    counter = WordCounter(model, normalize=normalize, lowercase=lowercase, compiled=compiled)
    counter.add(list(texts()))
    return training.train(model, merge([counter.take()]), normalize=normalize, lowercase=lowercase, **options)
