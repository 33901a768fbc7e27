"""GPT-2."""

from __future__ import annotations

import math

from tpu_trainer.network.architecture import (
    Architecture,
    Attention,
    Dropout,
    Initial,
    LayerKind,
    Mlp,
    Norm,
    Positions,
    default_scale,
)
from tpu_trainer.network.families.family import ConfigValues, Family, Fused


def _architecture(values: ConfigValues) -> Architecture:
    width, layers, heads = values["n_embd"], values["n_layer"], values["n_head"]
    values.require("add_cross_attention", False, None)
    std, inverse = values["initializer_range"], values["scale_attn_by_inverse_layer_idx"]
    return Architecture(
        vocabulary=values["vocab_size"],
        width=width,
        causal=True,
        attention=Attention(
            heads=heads,
            key_heads=heads,
            head_size=width // heads,
            scale=default_scale(width // heads) if values["scale_attn_weights"] else 1.0,
            bias=True,
            output_bias=True,
        ),
        mlp=Mlp(
            size=values.get("n_inner", 4 * width),
            activation=values.activation("activation_function"),
            bias=True,
        ),
        norm=Norm(kind="layer", epsilon=values["layer_norm_epsilon"], bias=True),
        kinds=tuple(LayerKind(scale=1 / (number + 1) if inverse else 1.0) for number in range(layers)),
        positions=Positions(count=values["n_positions"]),
        tied=values["tie_word_embeddings"],
        dropout=Dropout(
            embeddings=values["embd_pdrop"],
            probabilities=values["attn_pdrop"],
            attention=values["resid_pdrop"],
            mlp=values["resid_pdrop"],
        ),
        # The projections into the residual stream, two per layer, as in GPT-2's paper and Megatron-LM.
        initial=Initial(weights=std, residual=std / math.sqrt(2 * layers)),
    )


FAMILY = Family(
    objective="clm",
    class_name="GPT2LMHeadModel",
    architecture=_architecture,
    modules={
        "transformer.wte": "embeddings.tokens",
        "transformer.wpe": "embeddings.positions",
        "transformer.h.{}.ln_1": "layers.attention_norm",
        "transformer.h.{}.attn.c_attn": Fused(
            ("layers.attention.query", "layers.attention.key", "layers.attention.value"), "columns"
        ),
        "transformer.h.{}.attn.c_proj": Fused(("layers.attention.output",), "columns"),
        "transformer.h.{}.ln_2": "layers.mlp_norm",
        "transformer.h.{}.mlp.c_fc": Fused(("layers.mlp.up",), "columns"),
        "transformer.h.{}.mlp.c_proj": Fused(("layers.mlp.down",), "columns"),
        "transformer.ln_f": "final_norm",
        "lm_head": "head",
    },
    copies=("lm_head",),
    without_effect=frozenset(
        ("reorder_and_upcast_attn", "summary_activation", "summary_first_dropout", "summary_proj_to_labels",
         "summary_type", "summary_use_proj", "use_cache")
    ),
    ignored_weights=(r"\.attn\.(masked_)?bias$",),
)  # fmt: skip
