"""The decoders compute what transformers' PyTorch classes compute, whatever their configuration."""

from __future__ import annotations

import pytest

from tests.tpu_trainer_export.comparison import (
    Values,
    assert_all_values_compared,
    assert_documents_apart,
    assert_same_function,
    assert_same_names,
    make_pair,
)

_SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
_LLAMA = _SIZES | {"num_key_value_heads": 2, "max_position_embeddings": 64}
_LLAMA_CASES: list[Values] = [
    {"hidden_size": 24},
    {"intermediate_size": 40},
    {"num_hidden_layers": 3},
    {"num_attention_heads": 2},
    {"num_key_value_heads": 4},
    {"head_dim": 12},
    {"hidden_act": "gelu_new"},
    {"rms_norm_eps": 0.1},
    {"tie_word_embeddings": True},
    {"max_position_embeddings": 16},
    {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}},
]
_ROPES: list[Values] = [
    {"rope_type": "linear", "factor": 4.0},
    {
        "rope_type": "llama3",
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "beta_fast": 4,
        "beta_slow": 2,
        "truncate": False,
        "mscale": 0.5,
        "mscale_all_dim": 0.7,
    },
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "attention_factor": 1.5},
]
BASES: dict[str, Values] = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "llama": _LLAMA,
}
CASES: dict[str, list[Values]] = {
    "gpt2": [
        {"n_embd": 24},
        {"n_layer": 3},
        {"n_head": 2},
        {"n_positions": 32},
        {"n_inner": 40},
        {"activation_function": "relu"},
        {"layer_norm_epsilon": 0.1},
        {"scale_attn_weights": False},
        {"scale_attn_by_inverse_layer_idx": True},
        {"tie_word_embeddings": False},
    ],
    "llama": [
        *_LLAMA_CASES,
        {"attention_bias": True},
        {"mlp_bias": True},
        *({"rope_parameters": {"rope_theta": 100.0} | rope} for rope in _ROPES),
    ],
}
_FLAT = [
    pytest.param(model_type, case, id=f"{model_type}-{','.join(map(str, case)) or 'base'}")
    for model_type, cases in CASES.items()
    for case in ({}, *cases)
]


@pytest.mark.parametrize(("model_type", "case"), _FLAT)
def test_names_logits_and_gradients_are_those_of_pytorch(model_type: str, case: Values) -> None:
    pair = make_pair(model_type, BASES[model_type] | case)
    assert_same_names(pair)
    assert_same_function(pair)


@pytest.mark.parametrize("model_type", BASES)
def test_every_value_of_a_configuration_is_compared(model_type: str) -> None:
    assert_all_values_compared(model_type, BASES[model_type], CASES[model_type])


@pytest.mark.parametrize("model_type", BASES)
def test_documents_in_a_row_are_computed_as_if_they_were_alone(model_type: str) -> None:
    assert_documents_apart(make_pair(model_type, BASES[model_type]))


@pytest.mark.parametrize("model_type", BASES)
@pytest.mark.parametrize("recompute", ["attention", "all"])
def test_recomputation_does_not_change_the_gradients(model_type: str, recompute: str) -> None:
    assert_same_function(make_pair(model_type, BASES[model_type]), recompute=recompute)


@pytest.mark.parametrize("model_type", BASES)
def test_the_compiled_network_computes_the_same(model_type: str) -> None:
    assert_same_function(make_pair(model_type, BASES[model_type]), compiled=True)
