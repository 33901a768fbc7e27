"""The initial weights depend on the seed, the name and the configuration.

tests/tpu_trainer_export/test_initial_weights.py compares their distributions with PyTorch's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.tpu_trainer.model_types import model_of
from tpu_trainer.data.vocabulary import Vocabulary


def initial(model_type: str, vocabulary: Vocabulary, **values: Any) -> dict[str, np.ndarray]:
    """Returns the initial weights by name."""
    network = model_of(model_type, vocabulary, length=12, noise=0, **values).network
    return {name: weight.numpy() for name, weight in network.weights.items()}


@pytest.mark.parametrize("layers", [1, 4])
def test_gpt2s_residual_projections_depend_on_the_number_of_layers(
    vocabulary: Vocabulary, layers: int
) -> None:
    weights = initial("gpt2", vocabulary, n_embd=128, n_layer=layers)
    projections = [*weights["layers.attention.output.weight"], *weights["layers.mlp.down.weight"]]
    for weight in projections:
        assert weight.std() == pytest.approx(0.02 / np.sqrt(2 * layers), rel=0.03)
    assert len({weight.tobytes() for weight in projections}) == 2 * layers


def test_modernberts_weights_end_at_the_cutoff(vocabulary: Vocabulary) -> None:
    values = initial("modernbert", vocabulary, hidden_size=128, initializer_cutoff_factor=1.5)
    weight = values["layers.attention.query.weight"]
    assert 1.49 * 0.02 < np.abs(weight).max() <= 1.5 * 0.02
    # 1.5 deviations of a normal distribution have 87% of its values, with 0.743 of its deviation.
    assert weight.std() == pytest.approx(0.743 * 0.02, rel=0.02)
