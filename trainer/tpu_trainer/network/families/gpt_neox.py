"""GPT-NeoX and Pythia."""

from __future__ import annotations

from tpu_trainer.network.architecture import (
    Architecture,
    Attention,
    Dropout,
    Initial,
    Mlp,
    Norm,
    default_scale,
)
from tpu_trainer.network.families.common import rope, uniform
from tpu_trainer.network.families.family import ConfigValues, Family, Fused


def _architecture(values: ConfigValues) -> Architecture:
    width, heads, bias = values["hidden_size"], values["num_attention_heads"], values["attention_bias"]
    dropout = values["hidden_dropout"]
    return Architecture(
        vocabulary=values["vocab_size"],
        width=width,
        causal=True,
        attention=Attention(
            heads=heads,
            key_heads=heads,
            head_size=width // heads,
            scale=default_scale(width // heads),
            bias=bias,
            output_bias=bias,
        ),
        mlp=Mlp(size=values["intermediate_size"], activation=values.activation("hidden_act"), bias=True),
        norm=Norm(kind="layer", epsilon=values["layer_norm_eps"], bias=True),
        parallel=values["use_parallel_residual"],
        kinds=uniform(values["num_hidden_layers"], rope=0),
        ropes=(rope(values, width // heads),),
        tied=values["tie_word_embeddings"],
        dropout=Dropout(
            embeddings=dropout, probabilities=values["attention_dropout"], attention=dropout, mlp=dropout
        ),
        initial=Initial(weights=values["initializer_range"]),
    )


_LAYER = "gpt_neox.layers.{}"
FAMILY = Family(
    objective="clm",
    class_name="GPTNeoXForCausalLM",
    architecture=_architecture,
    modules={
        "gpt_neox.embed_in": "embeddings.tokens",
        f"{_LAYER}.input_layernorm": "layers.attention_norm",
        f"{_LAYER}.attention.query_key_value": Fused(
            ("layers.attention.query", "layers.attention.key", "layers.attention.value"), "head triples"
        ),
        f"{_LAYER}.attention.dense": "layers.attention.output",
        f"{_LAYER}.post_attention_layernorm": "layers.mlp_norm",
        f"{_LAYER}.mlp.dense_h_to_4h": "layers.mlp.up",
        f"{_LAYER}.mlp.dense_4h_to_h": "layers.mlp.down",
        "gpt_neox.final_layer_norm": "final_norm",
        # transformers 5 calls it lm_head, but not in files.
        "embed_out": "head",
    },
    copies=("embed_out",),
    # Published configurations have the last two; PyTorch's class does not use them.
    without_effect=frozenset((
        "classifier_dropout", "is_decoder", "max_position_embeddings", "use_cache", "attention_probs_dropout_prob",
        "hidden_dropout_prob",
    )),
    ignored_weights=(r"\.attention\.(masked_)?bias$", r"\.rotary_emb\.inv_freq$"),
)  # fmt: skip
