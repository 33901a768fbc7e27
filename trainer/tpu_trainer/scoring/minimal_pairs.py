"""Scores of minimal pairs: how often a model finds the good sentence likelier."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tpu_trainer.data.minimal_pairs import Pair
from tpu_trainer.data.target_rows import TargetRow, causal_row, masked_rows
from tpu_trainer.scoring.models import ScoredModel
from tpu_trainer.scoring.scorer import Scorer
from tpu_trainer.support.errors import UsageError


def score_pairs(pairs: Sequence[Pair], scorer: Scorer) -> dict[str, float]:
    """Returns the share of pairs whose good sentence is the likelier one, and its standard error.

    A causal model gives the sentences' likelihood, as in lm-eval's task; a masked one their pseudo-likelihood by
    `acc`, which masks single tokens, and, if the tokens show where words begin, by `acc_within_word`, which also masks
    the rest of the word (see `masked_rows`).

    Raises:
        UsageError: If a sentence does not fit into the model.
    """
    model = scorer.model
    texts = [text for pair in pairs for text in pair]
    if model.objective == "clm":
        return _accuracy("acc", _sums([[_causal(text, model)] for text in texts], scorer))
    encoded = [_encoded(text, model) for text in texts]
    mask_id, words = model.vocabulary.mask_id, model.vocabulary.words
    figures = _accuracy("acc", _sums([masked_rows(*each, mask_id=mask_id) for each in encoded], scorer))
    if words is not None:
        rows = [masked_rows(*each, mask_id=mask_id, words=words) for each in encoded]
        figures |= _accuracy("acc_within_word", _sums(rows, scorer))
    return figures


def _causal(text: str, model: ScoredModel) -> TargetRow:
    prefix = model.prefix_id
    if prefix is None:
        raise UsageError(
            "the tokenizer has neither a begin nor an end token, after which a sentence could begin"
        )
    ids = model.tokenizer(text, add_special_tokens=False)["input_ids"]
    if ids[:1] == [prefix]:
        ids = ids[1:]
    _check_length(text, len(ids), model)
    return causal_row([prefix], ids, max_length=model.max_length)


def _encoded(text: str, model: ScoredModel) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ids with special tokens, int32[n], and which of them are special, bool[n]."""
    encoding = model.tokenizer(text, return_special_tokens_mask=True)
    is_special = np.array(encoding["special_tokens_mask"], bool)
    _check_length(text, 0 if is_special.all() else len(is_special), model)
    return np.array(encoding["input_ids"], np.int32), is_special


def _check_length(text: str, length: int, model: ScoredModel) -> None:
    if not 0 < length <= model.max_length:
        raise UsageError(
            f"--tasks: a sentence has {length} tokens; the model takes 1 to {model.max_length}: {text[:80]!r}"
        )


def _sums(rows_of_texts: Sequence[Sequence[TargetRow]], scorer: Scorer) -> np.ndarray:
    """Returns the summed log-likelihoods of each text's rows, float64[texts]."""
    counts = [len(rows) for rows in rows_of_texts]
    scores = scorer.scores([row for rows in rows_of_texts for row in rows]).log_likelihood
    return np.add.reduceat(scores, np.concatenate([[0], np.cumsum(counts)[:-1]]))


def _accuracy(name: str, likelihoods: np.ndarray) -> dict[str, float]:
    good, bad = likelihoods.reshape(-1, 2).T
    share, count = float((good > bad).mean()), len(good)
    if count == 1:
        return {name: share}
    return {name: share, f"{name}_stderr": math.sqrt(share * (1 - share) / (count - 1))}
