"""ELECTRA's generator: BERT with embeddings of a width of their own."""

from __future__ import annotations

from dataclasses import replace

from tpu_trainer.network.architecture import Architecture
from tpu_trainer.network.families.bert import IGNORED, WITHOUT_EFFECT, bert_architecture, bert_modules
from tpu_trainer.network.families.family import ConfigValues, Family


def _architecture(values: ConfigValues) -> Architecture:
    bert, width = bert_architecture(values), values["embedding_size"]
    return bert if width == bert.width else replace(bert, embedding_width=width, projection_bias=True)


FAMILY = Family(
    objective="mlm",
    class_name="ElectraForMaskedLM",
    architecture=_architecture,
    modules=bert_modules("electra")
    | {
        "electra.embeddings_project": "embeddings.projection",
        "generator_predictions.dense": "head.transform",
        "generator_predictions.LayerNorm": "head.norm",
        "generator_lm_head.weight": "head.weight",
        "generator_lm_head.bias": "head.bias",
    },
    copies=("generator_lm_head",),
    without_effect=WITHOUT_EFFECT.union(
        ("summary_type", "summary_use_proj", "summary_activation", "summary_last_dropout", "generator_size")
    ),
    ignored_weights=IGNORED,
)
