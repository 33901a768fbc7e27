"""The encoders compute what transformers' PyTorch classes compute, whatever their configuration."""

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

_BERT: Values = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
_BERT_CASES: list[Values] = [
    {"hidden_size": 24},
    {"intermediate_size": 40},
    {"num_hidden_layers": 3},
    {"num_attention_heads": 2},
    {"max_position_embeddings": 16},
    {"type_vocab_size": 1},
    {"hidden_act": "relu"},
    {"layer_norm_eps": 0.1},
    {"tie_word_embeddings": False},
]
_ROBERTAS = ("camembert", "roberta", "xlm-roberta")
BASES: dict[str, Values] = {
    "bert": _BERT,
    "distilbert": {"dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 64},
    "electra": _BERT | {"embedding_size": 20},
    "modernbert": _BERT | {"local_attention": 6, "num_hidden_layers": 3},
} | dict.fromkeys(_ROBERTAS, _BERT)
CASES: dict[str, list[Values]] = {
    "bert": _BERT_CASES,
    "distilbert": [
        {"dim": 24},
        {"hidden_dim": 40},
        {"n_layers": 3},
        {"n_heads": 2},
        {"max_position_embeddings": 16},
        {"activation": "relu"},
        {"tie_word_embeddings": False},
    ],
    "electra": [*_BERT_CASES, {"embedding_size": 32}, {"embedding_size": 40, "tie_word_embeddings": False}],
    "modernbert": [
        {"hidden_size": 24},
        {"intermediate_size": 40},
        {"num_hidden_layers": 4},
        {"num_attention_heads": 2},
        {"hidden_activation": "relu"},
        {"norm_eps": 0.1},
        {"norm_bias": True},
        {"attention_bias": True},
        {"mlp_bias": True},
        {"local_attention": 3},
        {"layer_types": ["sliding_attention", "full_attention", "full_attention"]},
        {"layer_types": ["full_attention"] * 3},
        {"global_attn_every_n_layers": 2},
        {"global_rope_theta": 100.0, "local_rope_theta": 50.0},
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 100.0, "factor": 4.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
            }
        },
        {"classifier_bias": True},
        {"classifier_activation": "tanh"},
        {"decoder_bias": False},
        {"tie_word_embeddings": False},
    ],
} | dict.fromkeys(_ROBERTAS, _BERT_CASES)
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


@pytest.mark.parametrize(
    ("model_type", "case"),
    [
        ("bert", {"position_embedding_type": "relative_key"}),
        ("bert", {"type_vocab_size": 0}),
        ("distilbert", {"sinusoidal_pos_embds": True}),
        ("modernbert", {"layer_types": ["full_attention", "chunked_attention", "full_attention"]}),
        ("roberta", {"is_decoder": True}),
    ],
    ids=lambda value: value if isinstance(value, str) else ",".join(value),
)
def test_values_that_pytorch_or_the_network_cannot_compute_are_refused(model_type: str, case: Values) -> None:
    with pytest.raises(UsageError, match=r"must be"):
        configuration(model_type, BASES[model_type] | case)
