"""BERT, and RoBERTa with its copies."""

from __future__ import annotations

from functools import partial

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
from tpu_trainer.network.families.family import ConfigValues, Family, Fused
from tpu_trainer.support.errors import UsageError


def bert_architecture(
    values: ConfigValues, *, positions_from_padding: bool = False, head_activation: str | None = None
) -> Architecture:
    """Returns the architecture of BERT.

    Args:
        values: A configuration with BERT's keys.
        positions_from_padding: Whether a row's first token has the position after the padding's id.
        head_activation: The key of the head's activation; None: it is the exact GELU.
    """
    width, heads = values["hidden_size"], values["num_attention_heads"]
    values.require("is_decoder", False, None)
    values.require("add_cross_attention", False, None)
    values.require("position_embedding_type", "absolute", None)
    norm = Norm(kind="layer", epsilon=values["layer_norm_eps"], bias=True)
    hidden = values["hidden_dropout_prob"]
    padding = values["pad_token_id"]
    if positions_from_padding and padding is None:
        raise UsageError(
            "--model.type: models that count positions from padding need a tokenizer with a pad token"
        )
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
        mlp=Mlp(
            size=values["intermediate_size"],
            activation=values.activation("hidden_act"),
            bias=True,
        ),
        norm=norm,
        norm_place="sum",
        final_norm=False,
        kinds=uniform(values["num_hidden_layers"]),
        positions=Positions(
            count=values["max_position_embeddings"],
            first=padding + 1 if positions_from_padding else 0,
            padding=padding if positions_from_padding else None,
        ),
        token_types=values["type_vocab_size"],
        embedding_norm=norm,
        head=Head(
            bias=True,
            transform=True,
            activation="gelu" if head_activation is None else values.activation(head_activation),
            norm=norm,
        ),
        tied=values["tie_word_embeddings"],
        dropout=Dropout(
            embeddings=hidden,
            probabilities=values["attention_probs_dropout_prob"],
            attention=hidden,
            mlp=hidden,
        ),
        initial=Initial(weights=values["initializer_range"]),
    )


def bert_modules(prefix: str) -> dict[str, str | Fused]:
    """Returns the modules of BERT's encoder, without a head."""
    embeddings, layer = f"{prefix}.embeddings", f"{prefix}.encoder.layer.{{}}"
    return {
        f"{embeddings}.word_embeddings": "embeddings.tokens",
        f"{embeddings}.position_embeddings": "embeddings.positions",
        f"{embeddings}.token_type_embeddings": "embeddings.types",
        f"{embeddings}.LayerNorm": "embeddings.norm",
        f"{layer}.attention.self.query": "layers.attention.query",
        f"{layer}.attention.self.key": "layers.attention.key",
        f"{layer}.attention.self.value": "layers.attention.value",
        f"{layer}.attention.output.dense": "layers.attention.output",
        f"{layer}.attention.output.LayerNorm": "layers.attention_norm_after",
        f"{layer}.intermediate.dense": "layers.mlp.up",
        f"{layer}.output.dense": "layers.mlp.down",
        f"{layer}.output.LayerNorm": "layers.mlp_norm_after",
    }


WITHOUT_EFFECT = frozenset(("classifier_dropout", "use_cache"))
# Published configurations have them, for the original code's pooler and order of text.
_OF_POOLER = ("directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers",
              "pooler_size_per_head", "pooler_type")  # fmt: skip
IGNORED = (r"\.pooler\.", r"\.embeddings\.position_ids$", r"^cls\.seq_relationship\.")


def _roberta(class_name: str) -> Family:
    return Family(
        objective="mlm",
        class_name=class_name,
        architecture=partial(bert_architecture, positions_from_padding=True),
        modules=bert_modules("roberta")
        | {
            "lm_head.dense": "head.transform",
            "lm_head.layer_norm": "head.norm",
            "lm_head.decoder": "head",
            "lm_head.bias": "head.bias",
        },
        copies=("lm_head.decoder",),
        without_effect=WITHOUT_EFFECT,
        ignored_weights=IGNORED,
    )


FAMILY = Family(
    objective="mlm",
    class_name="BertForMaskedLM",
    architecture=partial(bert_architecture, head_activation="hidden_act"),
    modules=bert_modules("bert")
    | {
        "cls.predictions.transform.dense": "head.transform",
        "cls.predictions.transform.LayerNorm": "head.norm",
        "cls.predictions.decoder": "head",
        "cls.predictions.bias": "head.bias",
    },
    copies=("cls.predictions.decoder",),
    without_effect=WITHOUT_EFFECT.union(_OF_POOLER),
    ignored_weights=IGNORED,
)
ROBERTA = _roberta("RobertaForMaskedLM")
XLM_ROBERTA = _roberta("XLMRobertaForMaskedLM")
CAMEMBERT = _roberta("CamembertForMaskedLM")
