"""DistilBERT."""

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


def _architecture(values: ConfigValues) -> Architecture:
    width, heads, dropout = values["dim"], values["n_heads"], values["dropout"]
    values.require("sinusoidal_pos_embds", False, None)
    norm, activation = Norm(kind="layer", epsilon=1e-12, bias=True), values.activation("activation")
    return Architecture(
        vocabulary=values["vocab_size"],
        width=width,
        causal=False,
        attention=Attention(
            heads=heads,
            key_heads=heads,
            head_size=width // heads,
            scale=default_scale(width // heads),
            bias=True,
            output_bias=True,
        ),
        mlp=Mlp(size=values["hidden_dim"], activation=activation, bias=True),
        norm=norm,
        norm_place="sum",
        final_norm=False,
        kinds=uniform(values["n_layers"]),
        positions=Positions(count=values["max_position_embeddings"]),
        embedding_norm=norm,
        head=Head(bias=True, transform=True, activation=activation, norm=norm),
        tied=values["tie_word_embeddings"],
        # PyTorch's class has none at attention's output.
        dropout=Dropout(embeddings=dropout, probabilities=values["attention_dropout"], mlp=dropout),
        initial=Initial(weights=values["initializer_range"]),
    )


_EMBEDDINGS, _LAYER = "distilbert.embeddings", "distilbert.transformer.layer.{}"
FAMILY = Family(
    objective="mlm",
    class_name="DistilBertForMaskedLM",
    architecture=_architecture,
    modules={
        f"{_EMBEDDINGS}.word_embeddings": "embeddings.tokens",
        f"{_EMBEDDINGS}.position_embeddings": "embeddings.positions",
        f"{_EMBEDDINGS}.LayerNorm": "embeddings.norm",
        f"{_LAYER}.attention.q_lin": "layers.attention.query",
        f"{_LAYER}.attention.k_lin": "layers.attention.key",
        f"{_LAYER}.attention.v_lin": "layers.attention.value",
        f"{_LAYER}.attention.out_lin": "layers.attention.output",
        f"{_LAYER}.sa_layer_norm": "layers.attention_norm_after",
        f"{_LAYER}.ffn.lin1": "layers.mlp.up",
        f"{_LAYER}.ffn.lin2": "layers.mlp.down",
        f"{_LAYER}.output_layer_norm": "layers.mlp_norm_after",
        "vocab_transform": "head.transform",
        "vocab_layer_norm": "head.norm",
        "vocab_projector.weight": "head.weight",
        "vocab_projector.bias": "head.bias",
    },
    copies=("vocab_projector",),
    # Published configurations have the last one; PyTorch's class does not use it.
    without_effect=frozenset(("qa_dropout", "seq_classif_dropout", "tie_weights_")),
    ignored_weights=(r"\.embeddings\.position_ids$",),
)
