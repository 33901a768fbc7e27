"""Gemma 2, and the language model of Gemma 3."""

from __future__ import annotations

import math
from typing import Any

from tpu_trainer.network.architecture import Architecture, LayerKind, Norm
from tpu_trainer.network.families.common import ropes_by_type, windowed
from tpu_trainer.network.families.family import ConfigValues, Fused
from tpu_trainer.network.families.llama import MODULES, llama_architecture, llama_family

_LAYER = "model.layers.{}"
_GEMMA2_MODULES: dict[str, str | Fused] = MODULES | {
    f"{_LAYER}.post_attention_layernorm": "layers.attention_norm_after",
    f"{_LAYER}.pre_feedforward_layernorm": "layers.mlp_norm",
    f"{_LAYER}.post_feedforward_layernorm": "layers.mlp_norm_after",
}
_GEMMA3_MODULES: dict[str, str | Fused] = _GEMMA2_MODULES | {
    f"{_LAYER}.self_attn.q_norm": "layers.attention.query_norm",
    f"{_LAYER}.self_attn.k_norm": "layers.attention.key_norm",
}


def _architecture(
    values: ConfigValues, kinds: tuple[LayerKind, ...], attention: dict[str, Any], **others: Any
) -> Architecture:
    values.require("use_bidirectional_attention", False, None)
    bias = values["attention_bias"]
    return llama_architecture(
        values,
        bias=bias,
        output_bias=bias,
        activation="hidden_activation",
        kinds=kinds,
        attention={"scale": 1 / math.sqrt(values.positive("query_pre_attn_scalar"))} | attention,
        norm_offset=1.0,
        norm_place="before and after",
        soft_cap=values.positive("final_logit_softcapping"),
        embedding_scale=math.sqrt(values["hidden_size"]),
        **others,
    )


def _gemma2(values: ConfigValues) -> Architecture:
    return _architecture(values, windowed(values), {"soft_cap": values.positive("attn_logit_softcapping")})


def _gemma3(values: ConfigValues) -> Architecture:
    values.require("attn_logit_softcapping", None)  # PyTorch's class ignores it
    return _architecture(
        values,
        windowed(values, by_type=True),
        {"norm": Norm(kind="rms", epsilon=values["rms_norm_eps"], offset=1.0)},
        ropes=ropes_by_type(values, values["head_dim"]),
    )


# transformers translates the first to `layer_types`; published configurations have the others, too.
_WITHOUT_EFFECT = ("sliding_window_pattern", "cache_implementation", "hidden_act")
GEMMA2 = llama_family(
    "Gemma2ForCausalLM", _gemma2, modules=_GEMMA2_MODULES, without_effect=_WITHOUT_EFFECT[1:]
)
GEMMA3 = llama_family("Gemma3ForCausalLM", _gemma3, modules=_GEMMA3_MODULES, without_effect=_WITHOUT_EFFECT)
