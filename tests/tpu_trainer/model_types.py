"""Small models of every supported type."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from transformers import CONFIG_MAPPING

from tpu_trainer.config import ModelConfig, ObjectiveName
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.network.configuration import configure
from tpu_trainer.network.families.registry import FAMILIES
from tpu_trainer.network.model import LanguageModel
from tpu_trainer.network.transformer import Computation
from tpu_trainer.network.weights import Network

_SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "intermediate_size": 24,
    "ffn_dim": 24,
    "hidden_dim": 24,
    "word_embed_proj_dim": 16,
    "embedding_size": 8,
    "rotary_dim": 4,
}
# What distinguishes a type from the others.
_OTHER: dict[str, dict[str, Any]] = {
    "gemma2": {"sliding_window": 4},
    "gemma3_text": {"sliding_window": 4},
    "modernbert": {"local_attention": 8, "global_attn_every_n_layers": 2},
    "olmo3": {"sliding_window": 4},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
}
ALL: list[tuple[ObjectiveName, str]] = sorted((family.objective, name) for name, family in FAMILIES.items())
_DIFFERENT = frozenset(("gemma3_text", "gpt2", "llama", "modernbert", "qwen3_moe", "roberta"))
EVERY_TYPE = [pytest.param(*each, marks=() if each[1] in _DIFFERENT else pytest.mark.wide) for each in ALL]
"""Parameters of tests: `make test` runs the types that differ most, `make test-all` all."""


def small_config(model_type: str) -> dict[str, Any]:
    """Returns values of --model.config for a model of two layers."""
    kind = CONFIG_MAPPING[model_type]
    known = kind().to_dict()
    values = {name: value for name, value in _SIZES.items() if kind.attribute_map.get(name, name) in known}
    return values | _OTHER.get(model_type, {})


def dropout_config(model_type: str, rate: float) -> dict[str, Any]:
    """Returns values of --model.config that set all dropout rates of the network to `rate`."""
    return {
        name: rate
        for name in CONFIG_MAPPING[model_type]().to_dict()
        if ("dropout" in name or name.endswith("pdrop"))
        and not name.startswith(("classifier", "summary", "seq_classif", "qa_"))
    }


def model_of(
    model_type: str,
    vocabulary: Vocabulary,
    *,
    length: int,
    noise: float = 0.1,
    computation: Computation | None = None,
    **values: Any,
) -> LanguageModel:
    """Returns a small model, without dropout if not configured.

    Args:
        model_type: Its type.
        vocabulary: The tokenizer's.
        length: Tokens in a row.
        noise: Standard deviation of what is added to each weight: biases start at 0, where a mistake would not show.
        computation: How to compute it.
        values: Further values of --model.config.
    """
    config = small_config(model_type) | dropout_config(model_type, 0.0) | values
    objective = FAMILIES[model_type].objective
    configuration = configure(
        ModelConfig(type=model_type, config=config),
        objective=objective,
        vocabulary=vocabulary,
        max_length=length,
    )
    network = Network(configuration.architecture, seed=3)
    if noise:
        rng = np.random.default_rng(0)
        for weight in network.weights.values():
            weight.assign_add(rng.normal(scale=noise, size=weight.shape).astype(np.float32))
    return LanguageModel(network=network, vocabulary=vocabulary, objective=objective, computation=computation)
