"""Supported model types and configuration values: those whose exports compute the same in PyTorch."""

from __future__ import annotations

from typing import Any

from tpu_trainer.config import ObjectiveName

# Model types whose exports give the same logits in PyTorch, in transformers 4 and 5, as `make test-export` checks.
# Not supported, despite their TensorFlow classes: albert and mpnet have weights that get no gradient; convbert, esm,
# mobilebert, openai-gpt and xglm differ between frameworks or versions of transformers; funnel, layoutlm and tapas need
# inputs other than tokens; longformer does not compile with XLA; as causal models, transfo-xl, xlm and xlnet have no
# plain next-token form, and TensorFlow's roformer attends to future tokens.
EXPORTABLE: dict[ObjectiveName, frozenset[str]] = {
    "mlm": frozenset(
        (
            "bert",
            "camembert",
            "deberta",
            "deberta-v2",
            "distilbert",
            "electra",
            "flaubert",
            "rembert",
            "roberta",
            "roberta-prelayernorm",
            "roformer",
            "xlm",
            "xlm-roberta",
        )
    ),
    "clm": frozenset(
        (
            "bert",
            "camembert",
            "ctrl",
            "gpt2",
            "gptj",
            "mistral",
            "opt",
            "rembert",
            "roberta",
            "roberta-prelayernorm",
            "xlm-roberta",
        )
    ),
}

_ENCODER = frozenset(
    ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act",
     "hidden_dropout_prob", "attention_probs_dropout_prob", "max_position_embeddings", "type_vocab_size",
     "initializer_range", "layer_norm_eps")
)  # fmt: skip
_DEBERTA = _ENCODER | {
    "relative_attention",
    "max_relative_positions",
    "position_biased_input",
    "pos_att_type",
}
_GPT = frozenset(
    ("n_positions", "n_embd", "n_layer", "n_head", "resid_pdrop", "embd_pdrop", "layer_norm_epsilon",
     "initializer_range")
)  # fmt: skip
_XLM = frozenset(
    ("emb_dim", "n_layers", "n_heads", "dropout", "attention_dropout", "gelu_activation",
     "layer_norm_eps", "max_position_embeddings", "embed_init_std", "init_std")
)  # fmt: skip
# By model type, the configuration values that can be changed. TensorFlow's and PyTorch's classes both respect them, as
# `make test-export` checks.
CONFIG_VALUES: dict[str, frozenset[str]] = {
    "bert": _ENCODER,
    "camembert": _ENCODER,
    "ctrl": _GPT - {"layer_norm_epsilon"} | {"dff"},
    "deberta": _DEBERTA,
    "deberta-v2": _DEBERTA
    | {"position_buckets", "norm_rel_ebd", "share_att_key", "conv_kernel_size", "conv_act"},
    "distilbert": frozenset(
        ("max_position_embeddings", "n_layers", "n_heads", "dim", "hidden_dim", "dropout", "attention_dropout",
         "activation", "initializer_range")
    ),
    "electra": _ENCODER | {"embedding_size"},
    "flaubert": _XLM,
    "gpt2": _GPT | {"n_inner", "activation_function", "attn_pdrop"},
    "gptj": _GPT | {"n_inner", "rotary_dim", "activation_function", "attn_pdrop"},
    "mistral": frozenset(
        ("max_position_embeddings", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
         "num_key_value_heads", "hidden_act", "initializer_range", "rms_norm_eps", "rope_theta", "attention_dropout",
         "sliding_window")
    ),
    "opt": frozenset(
        ("max_position_embeddings", "num_attention_heads", "word_embed_proj_dim", "ffn_dim", "hidden_size",
         "num_hidden_layers", "dropout", "attention_dropout", "activation_function", "init_std",
         "do_layer_norm_before", "_remove_final_layer_norm")
    ),
    "rembert": _ENCODER | {"input_embedding_size", "output_embedding_size"},
    "roberta": _ENCODER,
    "roberta-prelayernorm": _ENCODER,
    "roformer": _ENCODER | {"embedding_size", "rotary_value"},
    "xlm": _XLM,
    "xlm-roberta": _ENCODER,
}  # fmt: skip
# Values that do not affect these language models: for other heads, for generation, from earlier releases.
WITHOUT_EFFECT = frozenset(
    ("classifier_dropout", "classifier_dropout_prob", "end_n_top", "gradient_checkpointing", "lang_id", "mask_index",
     "mask_token_id", "n_ctx", "pooler_dropout", "pooler_hidden_act", "pooler_hidden_size", "qa_dropout",
     "reorder_and_upcast_attn", "seq_classif_dropout", "start_n_top", "summary_activation", "summary_first_dropout",
     "summary_last_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj", "use_cache",
     "bos_index", "eos_index", "pad_index", "unk_index")
)  # fmt: skip
ACTIVATIONS = frozenset(
    (
        "gelu",
        "gelu_10",
        "gelu_fast",
        "gelu_new",
        "mish",
        "quick_gelu",
        "relu",
        "sigmoid",
        "silu",
        "swish",
        "tanh",
    )
)
_ACTIVATION_NAMES = frozenset(("hidden_act", "activation", "activation_function", "conv_act"))


def unsupported_reason(model_type: str, name: str, value: Any) -> str | None:
    """Returns why a value other than the type's default is not supported; None if it is.

    Args:
        model_type: The model type.
        name: Name of the value, after attribute_map is applied.
        value: The value.
    """
    if name in WITHOUT_EFFECT:
        return None
    if name not in CONFIG_VALUES[model_type]:
        return (
            f"{model_type} in TensorFlow ignores it or interprets it differently from PyTorch, so the exported model "
            f"would differ from the trained one; omit it; supported: {', '.join(sorted(CONFIG_VALUES[model_type]))}"
        )
    if name in _ACTIVATION_NAMES and value not in ACTIVATIONS:
        return f"must be one of {', '.join(sorted(ACTIVATIONS))}, which TensorFlow and PyTorch have in common"
    if name == "conv_kernel_size" and value and value % 2 == 0:
        return "must be odd, because PyTorch's class fails for even values"
    return None
