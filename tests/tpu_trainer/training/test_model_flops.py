"""The operations of a model."""

from __future__ import annotations

from tests.tpu_trainer.model_types import model_of
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.training.model_flops import training_flops_per_row


def test_operations_of_a_row_by_hand(vocabulary: Vocabulary) -> None:
    size, layers, inner_size, vocab, length, predicted = 32, 2, 48, 128, 20, 3
    model = model_of("roberta", vocabulary, length=length, hidden_size=size, intermediate_size=inner_size)
    # Multiplications of each token: query, key, value, output; in and out of the feed-forward layer.
    token = layers * (4 * size * size + 2 * size * inner_size)
    attention = layers * 2 * length * length * size
    head = size * size + size * vocab
    forward = 2 * (length * token + attention + predicted * head)
    flops = training_flops_per_row(model.network.architecture, max_length=length, predicted=predicted)
    assert flops == 3 * forward


def test_operations_of_grouped_heads_a_gate_and_an_embedding_that_is_no_head(vocabulary: Vocabulary) -> None:
    model = model_of("llama", vocabulary, length=20)  # 16 wide, 2 heads of 8, one key head, 24 inside
    token = 2 * (16 * 16 + 2 * 8 * 16 + 16 * 16 + 3 * 16 * 24)
    forward = 2 * (20 * token + 2 * 2 * 20 * 20 * 16 + 20 * 16 * 128)
    assert training_flops_per_row(model.network.architecture, max_length=20, predicted=20) == 3 * forward
