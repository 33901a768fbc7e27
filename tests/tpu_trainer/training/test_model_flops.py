"""The operations of a model."""

from __future__ import annotations

from transformers import RobertaConfig

from tpu_trainer.network.model import build_network
from tpu_trainer.training.model_flops import training_flops_per_row


def test_operations_of_a_row_by_hand() -> None:
    hidden_size, layers, inner_size, vocab, length, predicted = 32, 2, 48, 256, 20, 3
    network = build_network(
        RobertaConfig(
            hidden_size=hidden_size,
            num_hidden_layers=layers,
            num_attention_heads=2,
            intermediate_size=inner_size,
            vocab_size=vocab,
            max_position_embeddings=30,
        ),
        "mlm",
    )
    # Multiplications of each token: query, key, value, output; in and out of the feed-forward layer.
    token = layers * (4 * hidden_size * hidden_size + 2 * hidden_size * inner_size)
    attention = layers * 2 * length * length * hidden_size
    head = hidden_size * hidden_size + hidden_size * vocab
    forward = 2 * (length * token + attention + predicted * head)
    assert training_flops_per_row(network, max_length=length, predicted=predicted) == 3 * forward
