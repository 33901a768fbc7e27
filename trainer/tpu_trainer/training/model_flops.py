"""The floating-point operations of training, for model FLOPs utilization (MFU).

Counted as in PaLM's appendix B (Chowdhery et al., 2022, arXiv 2204.02311): matrix products only, three times those of
the forward pass, without recomputation to save memory.
"""

from __future__ import annotations

import math

from tpu_trainer.network.architecture import Architecture
from tpu_trainer.network.weights import STACKED, weight_specs


def training_flops_per_row(architecture: Architecture, *, max_length: int, predicted: int) -> float:
    """Returns the floating-point operations of the forward and backward pass of a row.

    Args:
        architecture: The network's.
        max_length: Tokens in the row.
        predicted: Positions in the row that the output layer predicts.
    """
    a, body, head = architecture, 0.0, float(architecture.vocabulary * architecture.head_width)
    for name, spec in weight_specs(a).items():
        if not name.endswith(".weight") or name == "head.weight":
            continue
        size = float(math.prod(spec.shape))
        if name.startswith("head.transform."):
            head += size
        elif name.startswith("embeddings.projection."):
            body += size
        elif name.startswith(STACKED) and len(spec.shape) > 2:
            experts = a.mlp.experts
            body += size * a.mlp.chosen_experts / experts if experts and len(spec.shape) == 4 else size
    # Scores and weighted sums each take one multiplication and one addition per query, key and dimension.
    attention = 0
    for kind in a.kinds:
        seen = max_length
        if kind.window is not None:
            seen = min(seen, kind.window if a.causal else 2 * kind.window - 1)
        attention += 4 * max_length * seen * a.attention.heads * a.attention.head_size
    # Embedding lookups are free. The product with the output matrix counts, whether or not it shares the embedding.
    return 3.0 * (2 * body * max_length + 2 * head * predicted + attention)
