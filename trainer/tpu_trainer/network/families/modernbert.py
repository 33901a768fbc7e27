"""ModernBERT: most of its layers have a window, and a rotation of their own."""

from __future__ import annotations

import math
from dataclasses import replace

from tpu_trainer.network.architecture import (
    Architecture,
    Attention,
    Dropout,
    Head,
    Initial,
    Mlp,
    Norm,
    default_scale,
)
from tpu_trainer.network.families.common import ropes_by_type, windowed
from tpu_trainer.network.families.family import ConfigValues, Family, Fused


def _architecture(values: ConfigValues) -> Architecture:
    width, heads, bias = values["hidden_size"], values["num_attention_heads"], values["attention_bias"]
    norm = Norm(kind="layer", epsilon=values["norm_eps"], bias=values["norm_bias"])
    # Of its keys, a query sees as many on either side as half of `local_attention`.
    first, *others = windowed(values, window=values["local_attention"] // 2 + 1, by_type=True)
    std, dropout = values["initializer_range"], values["attention_dropout"]
    residual = std / math.sqrt(2 * len((first, *others)))
    return Architecture(
        vocabulary=values["vocab_size"],
        width=width,
        causal=False,
        attention=Attention(
            heads=heads,
            key_heads=heads,
            head_size=width // heads,
            scale=default_scale(width // heads),
            bias=bias,
            output_bias=bias,
        ),
        mlp=Mlp(
            size=values["intermediate_size"],
            activation=values.activation("hidden_activation"),
            gated=True,
            bias=values["mlp_bias"],
        ),
        norm=norm,
        kinds=(replace(first, norm_attention=False), *others),
        ropes=ropes_by_type(values, width // heads),
        embedding_norm=norm,
        head=Head(
            bias=values["decoder_bias"],
            transform=True,
            transform_bias=values["classifier_bias"],
            activation=values.activation("classifier_activation"),
            norm=norm,
        ),
        tied=values["tie_word_embeddings"],
        dropout=Dropout(
            embeddings=values["embedding_dropout"],
            probabilities=dropout,
            attention=dropout,
            inner=values["mlp_dropout"],
        ),
        initial=Initial(
            weights=std,
            residual=residual,
            head=residual,
            cutoff=values.positive("initializer_cutoff_factor"),
        ),
    )


_LAYER = "model.layers.{}"
FAMILY = Family(
    objective="mlm",
    class_name="ModernBertForMaskedLM",
    architecture=_architecture,
    modules={
        "model.embeddings.tok_embeddings": "embeddings.tokens",
        "model.embeddings.norm": "embeddings.norm",
        f"{_LAYER}.attn_norm": "layers.attention_norm",
        f"{_LAYER}.attn.Wqkv": Fused(
            ("layers.attention.query", "layers.attention.key", "layers.attention.value")
        ),
        f"{_LAYER}.attn.Wo": "layers.attention.output",
        f"{_LAYER}.mlp_norm": "layers.mlp_norm",
        f"{_LAYER}.mlp.Wi": Fused(("layers.mlp.gate", "layers.mlp.up")),
        f"{_LAYER}.mlp.Wo": "layers.mlp.down",
        "model.final_norm": "final_norm",
        "head.dense": "head.transform",
        "head.norm": "head.norm",
        "decoder.weight": "head.weight",
        "decoder.bias": "head.bias",
    },
    copies=("decoder",),
    # Of other heads and of how PyTorch's class computes. The last are in published configurations; transformers
    # translates the first of them to `layer_types`.
    without_effect=frozenset((
        "classifier_dropout", "classifier_pooling", "deterministic_flash_attn", "max_position_embeddings",
        "reference_compile", "sparse_pred_ignore_index", "sparse_prediction",
        "global_attn_every_n_layers", "layer_norm_eps", "position_embedding_type", "repad_logits_with_grad",
    )),
)  # fmt: skip
