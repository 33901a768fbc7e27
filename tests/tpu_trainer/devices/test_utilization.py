"""The operations of a model and the peaks of devices."""

from __future__ import annotations

import pytest
from transformers import RobertaConfig

from tpu_trainer.devices.utilization import gpu_peak_flops, tpu_peak_flops, training_flops_per_row
from tpu_trainer.network.model import build_network


def test_operations_of_a_row_by_hand() -> None:
    hidden, layers, inner, vocab, length, predicted = 32, 2, 48, 256, 20, 3
    network = build_network(
        RobertaConfig(
            hidden_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=2,
            intermediate_size=inner,
            vocab_size=vocab,
            max_position_embeddings=30,
        ),
        "mlm",
    )
    # Multiplications of each token: query, key, value, output; in and out of the feed-forward layer.
    token = layers * (4 * hidden * hidden + 2 * hidden * inner)
    attention = layers * 2 * length * length * hidden
    head = hidden * hidden + hidden * vocab
    forward = 2 * (length * token + attention + predicted * head)
    assert training_flops_per_row(network, max_length=length, predicted=predicted) == 3 * forward


@pytest.mark.parametrize(
    ("name", "bfloat16", "expected"),
    [
        ("NVIDIA H200", True, 989e12),
        ("NVIDIA H100 80GB HBM3", False, 494e12),
        ("NVIDIA H100 PCIe", True, 756e12),
        ("NVIDIA A100-SXM4-40GB", True, 312e12),
        ("NVIDIA L4", True, 121e12),
        ("NVIDIA L40S", True, 362e12),
        ("GeForce GT 710", True, None),
    ],
)
def test_published_peaks_of_gpus(name: str, bfloat16: bool, expected: float | None) -> None:
    assert gpu_peak_flops(name, bfloat16=bfloat16) == expected


def test_published_peaks_of_tpus() -> None:
    assert tpu_peak_flops("v5e") == 197e12
    assert tpu_peak_flops("v3") == 61.5e12  # a device is one of a chip's two cores
    assert tpu_peak_flops("") is None
