"""The floating-point operations of training, for model FLOPs utilization (MFU).

Counted as in PaLM's appendix B (Chowdhery et al., 2022, arXiv 2204.02311): matrix products only, three times those of
the forward pass, without recomputation to save memory.
"""

from __future__ import annotations

import re

from transformers import TFPreTrainedModel

_EMBEDDING = re.compile(r"(^|/)(\w*embeddings?|wte|wpe)(/|:|$)")
_HEAD = re.compile(r"(^|/)(lm_head|mlm|predictions)(/|$)")


def training_flops_per_row(network: TFPreTrainedModel, *, max_length: int, predicted: int) -> float:
    """Returns the floating-point operations of the forward and backward pass of a row.

    Args:
        network: A Hugging Face model with the usual names of weights.
        max_length: Tokens in the row.
        predicted: Positions in the row that the output layer predicts.
    """
    config = network.config
    body = head = 0
    for variable in network.trainable_variables:
        if len([size for size in variable.shape if size != 1]) < 2 or _EMBEDDING.search(variable.name):
            continue
        if _HEAD.search(variable.name):
            head += variable.shape.num_elements()
        else:
            body += variable.shape.num_elements()
    # Embedding lookups are free. The product with the output matrix counts, whether or not it shares the embedding.
    if not any(config.vocab_size in variable.shape and _HEAD.search(variable.name) and variable.shape.rank == 2
               for variable in network.trainable_variables):  # fmt: skip
        head += config.vocab_size * config.hidden_size
    # Per layer, scores and weighted sums each take max_length² · hidden multiplications and as many additions.
    attention = 4 * max_length**2 * config.hidden_size * config.num_hidden_layers
    forward = 2 * body * max_length + 2 * head * predicted + attention
    return 3.0 * forward
