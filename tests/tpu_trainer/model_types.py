"""Small configurations of every supported model type."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tpu_trainer.config import ObjectiveName
from tpu_trainer.network.model_types import CONFIG_VALUES, EXPORTABLE

_BERT = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
_GPT = {"n_embd": 16, "n_layer": 2, "n_head": 2}
_XLM = {"emb_dim": 16, "n_layers": 2, "n_heads": 2}
# The published DeBERTa's values; transformers' defaults are BERT's.
_RELATIVE = {"relative_attention": True, "position_biased_input": False, "pos_att_type": ["c2p", "p2c"]}
_SIZES: dict[str, dict[str, Any]] = {
    "ctrl": _GPT | {"dff": 24},
    "deberta": _BERT | _RELATIVE,
    "deberta-v2": _BERT | _RELATIVE,
    "distilbert": {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24},
    "electra": _BERT | {"embedding_size": 8},
    "flaubert": _XLM,
    "gpt2": _GPT,
    "gptj": _GPT | {"rotary_dim": 4},
    "mistral": _BERT | {"num_key_value_heads": 1},
    "opt": {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "ffn_dim": 24}
    | {"word_embed_proj_dim": 16},
    "rembert": _BERT | {"input_embedding_size": 8, "output_embedding_size": 8},
    "roformer": _BERT | {"embedding_size": 8},
    "xlm": _XLM,
}
ALL: list[tuple[ObjectiveName, str]] = [
    (objective, model_type) for objective in EXPORTABLE for model_type in sorted(EXPORTABLE[objective])
]
_DIFFERENT = frozenset(
    (("mlm", "roberta"), ("mlm", "deberta-v2"), ("mlm", "xlm"), ("clm", "gpt2"), ("clm", "mistral"))
)
EVERY_TYPE = [pytest.param(*each, marks=() if each in _DIFFERENT else pytest.mark.wide) for each in ALL]
"""Parameters of tests: `make test` runs the types that differ most, `make test-all` all."""


def small_config(model_type: str) -> dict[str, Any]:
    """Returns values of --model.config for a model of two layers."""
    return dict(_SIZES.get(model_type, _BERT))


# For each supported value that is not a size, one that differs from small_config and from transformers' default.
_OTHER_VALUES: dict[str, Any] = {
    "activation": "tanh",
    "activation_function": "tanh",
    "conv_act": "relu",
    "conv_kernel_size": 3,
    "embed_init_std": 0.3,
    "gelu_activation": False,
    "hidden_act": "tanh",
    "init_std": 0.3,
    "initializer_range": 0.3,
    "layer_norm_eps": 0.1,
    "layer_norm_epsilon": 0.1,
    "max_position_embeddings": 40,
    "max_relative_positions": 8,
    "n_head": 4,
    "n_heads": 4,
    "n_inner": 40,
    "n_positions": 40,
    "norm_rel_ebd": "layer_norm",
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pos_att_type": ["p2c"],
    "position_biased_input": True,
    "position_buckets": 4,
    "rms_norm_eps": 0.1,
    "rope_theta": 50.0,
    "rotary_dim": 2,
    "rotary_value": True,
    "share_att_key": True,
    "sliding_window": 20,
    "type_vocab_size": 3,
    "word_embed_proj_dim": 8,
}


def other_configs(model_type: str) -> list[dict[str, Any]]:
    """Returns small configurations that together change all supported values."""
    names = CONFIG_VALUES[model_type]
    other_values = {name: value for name, value in _OTHER_VALUES.items() if name in names}
    config = small_config(model_type) | other_values | dropout_config(model_type, 0.2)
    if model_type != "opt":
        return [config]
    # OPT has its final norm only if norms precede the layers.
    return [config | {"do_layer_norm_before": False}, config | {"_remove_final_layer_norm": True}]


# The values of wide models.
VOCABULARY, LENGTH = 512, 64


def wide_config(model_type: str) -> dict[str, Any]:
    """Returns a small configuration, but wide enough to measure the distribution of a matrix's weights."""
    return {
        name: 4 * value if type(value) is int and value >= 8 else value
        for name, value in small_config(model_type).items()
    }


def name_pattern(name: str) -> str:
    """Returns a weight's PyTorch name with * for the layer number."""
    return re.sub(r"\.\d+\.", ".*.", name)


DROPOUT = (
    "hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout", "resid_pdrop", "embd_pdrop",
    "attn_pdrop",
)  # fmt: skip


def dropout_config(model_type: str, rate: float) -> dict[str, Any]:
    """Returns values of --model.config that set all dropout rates of the network to `rate`."""
    from transformers import CONFIG_MAPPING

    defaults = CONFIG_MAPPING[model_type]()
    return {name: rate for name in DROPOUT if hasattr(defaults, name)}
