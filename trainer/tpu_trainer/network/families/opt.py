"""OPT."""

from __future__ import annotations

from tpu_trainer.network.architecture import (
    Architecture,
    Attention,
    Dropout,
    Head,
    Initial,
    Mlp,
    Norm,
    Positions,
    default_scale,
)
from tpu_trainer.network.families.common import uniform
from tpu_trainer.network.families.family import ConfigValues, Family

# Rows of the table of positions before the first token's.
_FIRST = 2


def _architecture(values: ConfigValues) -> Architecture:
    width, heads, dropout = values["hidden_size"], values["num_attention_heads"], values["dropout"]
    embedded, bias, before = (
        values["word_embed_proj_dim"],
        values["enable_bias"],
        values["do_layer_norm_before"],
    )
    has_weights = values["layer_norm_elementwise_affine"]
    values.require("layerdrop", 0)
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
        mlp=Mlp(size=values["ffn_dim"], activation=values.activation("activation_function"), bias=bias),
        norm=Norm(kind="layer", epsilon=1e-5, weight=has_weights, bias=has_weights),
        norm_place="before" if before else "sum",
        final_norm=before and not values["_remove_final_layer_norm"],
        kinds=uniform(values["num_hidden_layers"]),
        positions=Positions(count=values["max_position_embeddings"] + _FIRST, first=_FIRST),
        embedding_width=None if embedded == width else embedded,
        head=Head(transform=embedded != width, transform_bias=False),
        tied=values["tie_word_embeddings"],
        # PyTorch's class has none of the embeddings.
        dropout=Dropout(probabilities=values["attention_dropout"], attention=dropout, mlp=dropout),
        initial=Initial(weights=values["init_std"]),
    )


_DECODER = "model.decoder"
_LAYER = f"{_DECODER}.layers.{{}}"
FAMILY = Family(
    objective="clm",
    class_name="OPTForCausalLM",
    architecture=_architecture,
    modules={
        f"{_DECODER}.embed_tokens": "embeddings.tokens",
        f"{_DECODER}.embed_positions": "embeddings.positions",
        f"{_DECODER}.project_in": "embeddings.projection",
        f"{_LAYER}.self_attn_layer_norm": ("layers.attention_norm", "layers.attention_norm_after"),
        f"{_LAYER}.self_attn.q_proj": "layers.attention.query",
        f"{_LAYER}.self_attn.k_proj": "layers.attention.key",
        f"{_LAYER}.self_attn.v_proj": "layers.attention.value",
        f"{_LAYER}.self_attn.out_proj": "layers.attention.output",
        f"{_LAYER}.final_layer_norm": ("layers.mlp_norm", "layers.mlp_norm_after"),
        f"{_LAYER}.fc1": "layers.mlp.up",
        f"{_LAYER}.fc2": "layers.mlp.down",
        f"{_DECODER}.final_layer_norm": "final_norm",
        f"{_DECODER}.project_out": "head.transform",
        "lm_head": "head",
    },
    copies=("lm_head",),
    # Published configurations have the first; PyTorch's class does not use it.
    without_effect=frozenset(("activation_dropout", "use_cache")),
)
