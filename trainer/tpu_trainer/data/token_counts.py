"""How often each token is a target, and the baseline that follows from it."""

from __future__ import annotations

import numpy as np

from tpu_trainer.config import ObjectiveName
from tpu_trainer.data.vocabulary import Vocabulary


def target_counts(
    token_counts: np.ndarray, vocabulary: Vocabulary, objective: ObjectiveName = "mlm"
) -> np.ndarray:
    """Returns how often each id is a target, up to a constant factor: float64[V].

    Masked language modelling never masks special ids; causal modelling predicts them like any other.
    """
    counts = np.array(token_counts, np.float64)
    if objective == "mlm":
        counts[list(vocabulary.special_ids)] = 0
    return counts


def unigram_entropy(
    token_counts: np.ndarray, vocabulary: Vocabulary, objective: ObjectiveName = "mlm"
) -> float:
    """Returns the cross-entropy, in nats per target, of predicting each token by its frequency."""
    counts = target_counts(token_counts, vocabulary, objective)
    share = counts[counts > 0] / counts.sum()
    return float(-(share * np.log(share)).sum())
