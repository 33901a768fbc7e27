"""Initial weights have the distributions of those of transformers' PyTorch classes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.tpu_trainer_export.comparison import (  # isort: skip  # before TensorFlow
    configuration,
    stored_state,
    torch,
    transformers,
)
from tests.tpu_trainer.model_types import ALL, small_config
from tpu_trainer.exports.pytorch_weights import to_pytorch
from tpu_trainer.network.weights import Network


def larger(values: dict[str, Any]) -> dict[str, Any]:
    """Returns values of a small model with four times its sizes: standard deviations of few values are rough."""
    sizes = {name for name, value in values.items() if type(value) is int and value >= 8}
    sizes -= {"sliding_window", "local_attention"}
    return {name: 4 * value if name in sizes else value for name, value in values.items()}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("model_type", [name for _, name in ALL])
def test_every_weight_has_the_mean_and_standard_deviation_of_pytorchs(model_type: str, tied: bool) -> None:
    deviation = "init_std" if model_type == "opt" else "initializer_range"
    sizes = {"tie_word_embeddings": tied, deviation: 0.05}
    checked = configuration(model_type, larger(small_config(model_type)) | sizes)
    network = Network(checked.architecture, seed=3)
    arrays = {name: weight.numpy() for name, weight in network.weights.items()}
    vocabulary = checked.architecture.vocabulary
    torch.manual_seed(0)
    config = transformers.CONFIG_MAPPING[model_type](**checked.values)
    expected = stored_state(getattr(transformers, checked.family.class_name)._from_config(config))
    for name, value in to_pytorch(checked.family, checked.architecture, arrays, vocabulary):
        mean = pytest.approx(expected[name].mean(), abs=7 * 0.05 / value.size**0.5)
        assert value.mean() == mean, name
        # Without the row of padding, which is 0 in PyTorch.
        deviations = [part[part != 0].std() if np.ptp(part) else 0.0 for part in (value, expected[name])]
        assert deviations[0] == pytest.approx(deviations[1], rel=5 / value.size**0.5, abs=1e-6), name
