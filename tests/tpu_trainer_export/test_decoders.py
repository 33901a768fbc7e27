"""The decoders compute what transformers' PyTorch classes compute, whatever their configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tpu_trainer_export.comparison import (
    Values,
    assert_all_values_compared,
    assert_documents_apart,
    assert_loads,
    assert_same_function,
    assert_same_names,
    configuration,
    make_pair,
)
from tpu_trainer.support.errors import UsageError

_SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
_LLAMA = _SIZES | {"num_key_value_heads": 2, "max_position_embeddings": 64}
_LLAMA_CASES: list[Values] = [
    {"hidden_size": 24},
    {"intermediate_size": 40},
    {"num_hidden_layers": 3},
    {"num_attention_heads": 2},
    {"num_key_value_heads": 4},
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
_ROPE_CASES: list[Values] = [{"rope_parameters": {"rope_theta": 100.0} | rope} for rope in _ROPES]
_HEADS: list[Values] = [{"head_dim": 12}]
_BIAS: list[Values] = [{"attention_bias": True}]
_WINDOW: Values = {"sliding_window": 4, "layer_types": ["full_attention", "sliding_attention"]}
_QWEN: list[Values] = [
    *_LLAMA_CASES,
    {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    {"use_sliding_window": True} | _WINDOW,
]
_GEMMA_SIZES: Values = _LLAMA | {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 4}
_GEMMA: list[Values] = [
    *(
        {("hidden_activation" if name == "hidden_act" else name): value for name, value in case.items()}
        for case in _LLAMA_CASES
    ),
    *_HEADS,
    *_BIAS,
    {"tie_word_embeddings": False},
    {"query_pre_attn_scalar": 24},
    {"sliding_window": 3},
    {"layer_types": ["full_attention", "sliding_attention"]},
]
# Rotations of layers without and with a window.
_TWO_ROPES: Values = {
    "rope_parameters": {
        "full_attention": {"rope_theta": 100.0} | _ROPES[2],
        "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
    }
}
_EXPERTS: Values = {"num_experts_per_tok": 2, "output_router_logits": True, "router_aux_loss_coef": 10.0}
_EXPERT_CASES: list[Values] = [
    {"num_experts": 3},
    {"num_experts_per_tok": 3},
    {"norm_topk_prob": True},
    {"router_aux_loss_coef": 100.0},
    {"output_router_logits": False},
]
BASES: dict[str, Values] = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "gpt_neox": _SIZES | {"max_position_embeddings": 64},
    "gptj": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "rotary_dim": 4},
    "llama": _LLAMA,
    "mistral": _LLAMA | {"sliding_window": 5},
    "qwen2": _LLAMA,
    "qwen3": _LLAMA | {"head_dim": 8},
    "smollm3": _LLAMA | {"no_rope_layer_interval": 2},
    "phi3": _LLAMA,
    "olmo2": _LLAMA,
    "olmo3": _LLAMA | _WINDOW,
    "gemma2": _GEMMA_SIZES,
    "gemma3_text": _LLAMA
    | {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 4, "sliding_window_pattern": 2},
    "opt": {"hidden_size": 32, "ffn_dim": 48, "num_hidden_layers": 2, "num_attention_heads": 4},
    "qwen3_moe": _LLAMA | {"head_dim": 8, "moe_intermediate_size": 24, "num_experts": 8} | _EXPERTS,
    "olmoe": _LLAMA | {"num_experts": 8} | _EXPERTS,
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
    "gpt_neox": [
        *(
            case
            for case in _LLAMA_CASES
            if not case.keys() & {"hidden_size", "num_key_value_heads", "rms_norm_eps"}
        ),
        {"hidden_size": 64},
        {"layer_norm_eps": 0.1},
        {"attention_bias": False},
        {"use_parallel_residual": False},
        {"rope_parameters": _ROPES[0] | {"rope_theta": 100.0, "partial_rotary_factor": 0.5}},
        {"rotary_pct": 1.0, "rotary_emb_base": 100},
    ],
    "gptj": [
        {"n_embd": 24},
        {"n_layer": 3},
        {"n_head": 2},
        {"n_inner": 40},
        {"rotary_dim": 8},
        {"activation_function": "relu"},
        {"layer_norm_epsilon": 0.1},
        {"tie_word_embeddings": True},
    ],
    "llama": [
        *_LLAMA_CASES,
        *_HEADS,
        *_BIAS,
        {"mlp_bias": True},
        *_ROPE_CASES,
        {"rope_theta": 100.0, "rope_scaling": {"type": "linear", "factor": 4.0}},
    ],
    "mistral": [*_LLAMA_CASES, *_HEADS, {"sliding_window": None}],
    "qwen2": _QWEN,
    "qwen3": [*_QWEN, *_HEADS, *_BIAS],
    "smollm3": [
        *_LLAMA_CASES,
        *_BIAS,
        {"mlp_bias": True},
        {"tie_word_embeddings": False},
        {"no_rope_layers": [0, 0]},
        {"no_rope_layers": [0, 1, 0]},
        {"use_sliding_window": True, "sliding_window": 4},
        _WINDOW,
    ],
    "phi3": [
        *_LLAMA_CASES,
        {"sliding_window": 4},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5}},
    ],
    "olmo2": [*_LLAMA_CASES, *_BIAS, *_ROPE_CASES[:1]],
    "olmo3": [
        *(case for case in _LLAMA_CASES if "num_hidden_layers" not in case and "rope_parameters" not in case),
        {"num_hidden_layers": 4, "layer_types": None},
        *_BIAS,
        {"sliding_window": 3},
        _TWO_ROPES,
        {"rope_theta": 100.0, "rope_scaling": _ROPES[2]},
    ],
    "gemma2": [*_GEMMA, {"attn_logit_softcapping": None}, {"final_logit_softcapping": 1.0}],
    "gemma3_text": [
        *(case for case in _GEMMA if "rope_parameters" not in case),
        {"final_logit_softcapping": 1.0},
        {"rope_theta": 100.0, "rope_local_base_freq": 50.0},
        _TWO_ROPES,
    ],
    "opt": [
        {"hidden_size": 24},
        {"ffn_dim": 40},
        {"num_hidden_layers": 3},
        {"num_attention_heads": 2},
        {"max_position_embeddings": 16},
        {"do_layer_norm_before": False},
        {"_remove_final_layer_norm": True},
        {"word_embed_proj_dim": 20},
        {"word_embed_proj_dim": 20, "tie_word_embeddings": False},
        {"activation_function": "gelu"},
        {"enable_bias": False},
        {"layer_norm_elementwise_affine": False},
        {"tie_word_embeddings": False},
    ],
    "qwen3_moe": [
        *(case for case in _LLAMA_CASES if "intermediate_size" not in case),
        *_HEADS,
        *_BIAS,
        *_EXPERT_CASES,
        {"moe_intermediate_size": 40},
        {"use_sliding_window": True, "sliding_window": 4},
    ],
    "olmoe": [*_LLAMA_CASES, *_BIAS, *_EXPERT_CASES],
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


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("model_type", BASES)
def test_pytorch_loads_a_folder_of_the_networks_weights(model_type: str, tied: bool, tmp_path: Path) -> None:
    assert_loads(make_pair(model_type, BASES[model_type] | {"tie_word_embeddings": tied}), tmp_path)


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


@pytest.mark.parametrize("model_type", [name for name in BASES if not name.startswith(("gpt", "opt"))])
def test_the_keys_of_earlier_releases_are_read(model_type: str) -> None:
    old = configuration(model_type, BASES[model_type] | {"rope_theta": 123.0, "rope_scaling": None})
    # They may have the default's value, too.
    configuration(model_type, BASES[model_type] | {"rope_theta": 10000.0})
    frequencies = old.architecture.ropes[0].frequencies
    assert frequencies[1] == pytest.approx(123.0 ** (-2 / old.architecture.attention.head_size))


@pytest.mark.parametrize(
    ("model_type", "case"),
    [
        ("gptj", {"rotary_dim": 9}),
        ("gptj", {"rotary_dim": 10}),
        ("opt", {"layerdrop": 0.1}),
        ("gemma2", {"query_pre_attn_scalar": 0}),
        ("llama", {"partial_rotary_factor": 0.5}),
        ("mistral", {"layer_types": ["full_attention", "full_attention"]}),
        ("olmoe", {"num_experts_per_tok": 9}),
        ("phi3", {"partial_rotary_factor": 0.1}),
        ("qwen2", {"layer_types": ["full_attention", "sliding_attention"]}),
        ("qwen2", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}),
        ("qwen3", {"layer_types": ["full_attention", "chunked_attention"]}),
        ("smollm3", {"no_rope_layers": [1], "layer_types": ["full_attention"] * 2}),
    ],
    ids=lambda value: value if isinstance(value, str) else ",".join(value),
)
def test_values_that_pytorch_or_the_network_cannot_compute_are_refused(model_type: str, case: Values) -> None:
    with pytest.raises(UsageError, match=r"must be|must have|need|no such value"):
        configuration(model_type, BASES[model_type] | case)
