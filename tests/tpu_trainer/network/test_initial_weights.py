"""The initial weights of every model type have the distributions of PyTorch's classes."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from tests.tpu_trainer.model_types import EVERY_TYPE, LENGTH, VOCABULARY, name_pattern, wide_config
from tpu_trainer.config import ModelConfig, ObjectiveName
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.exports.pytorch_layout import pytorch_weights
from tpu_trainer.network.model import LanguageModel

# Measured in PyTorch by tests/tpu_trainer_export/initial_weights.py.
EXPECTED = json.loads(Path(__file__).with_name("initial_weights.json").read_text())
VOCAB = Vocabulary(size=VOCABULARY, special_ids=(0, 1, 2, 3, 4), pad_id=1, mask_id=4, bos_id=0, eos_id=2)


@pytest.mark.parametrize(("objective", "model_type"), EVERY_TYPE, ids=lambda value: value)
def test_every_weight_has_the_standard_deviation_of_pytorch(
    objective: ObjectiveName, model_type: str
) -> None:
    model = LanguageModel.create(
        ModelConfig(type=model_type, config=wide_config(model_type)),
        objective=objective,
        vocabulary=VOCAB,
        max_length=LENGTH,
        seed=3,
    )
    values_by_pattern = defaultdict(list)
    for name, value in pytorch_weights(model.network).items():
        values_by_pattern[name_pattern(name)].append(value.ravel())
    expected = EXPECTED[f"{objective} {model_type}"]
    for name, values in values_by_pattern.items():
        # PyTorch lists tied weights once, under one of their names.
        mean, std = expected[name if name in expected else "lm_head.decoder.weight"]
        sample = np.concatenate(values)
        assert sample.mean() == pytest.approx(mean, abs=0.02), name
        sample = sample[sample != 0]  # without the row of the padding token
        # TensorFlow's classes truncate normal distributions at two standard deviations, which reduces theirs to 0.88.
        assert 0.82 * std <= (sample.std() if sample.size > 1 else 0) <= 1.12 * std, name


def test_gpt2s_residual_projections_depend_on_the_number_of_layers_and_the_seed() -> None:
    def projections(layers: int, seed: int) -> list[np.ndarray]:
        config = ModelConfig(type="gpt2", config={"n_embd": 128, "n_layer": layers, "n_head": 2})
        model = LanguageModel.create(config, objective="clm", vocabulary=VOCAB, max_length=16, seed=seed)
        return [weight.numpy() for weight in model.network.weights if "c_proj/weight" in weight.name]

    for layers in (1, 4):
        weights = projections(layers, 5)
        assert len(weights) == 2 * layers
        for weight, same_seed, other_seed in zip(
            weights, projections(layers, 5), projections(layers, 6), strict=True
        ):
            assert weight.std() == pytest.approx(0.02 / np.sqrt(2 * layers), rel=0.03)
            np.testing.assert_array_equal(weight, same_seed)
            assert (weight != other_seed).all()
        assert len({weight.tobytes() for weight in weights}) == 2 * layers
