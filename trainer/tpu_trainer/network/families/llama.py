"""Llama 1 to 3, and what all its descendants share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from tpu_trainer.network.architecture import (
    Architecture,
    Attention,
    Dropout,
    Head,
    Initial,
    LayerKind,
    Mlp,
    Norm,
    default_scale,
)
from tpu_trainer.network.families.common import rope, uniform
from tpu_trainer.network.families.family import ConfigValues, Family, Fused

MODULES: dict[str, str | Fused] = {
    "model.embed_tokens": "embeddings.tokens",
    "model.layers.{}.input_layernorm": "layers.attention_norm",
    "model.layers.{}.self_attn.q_proj": "layers.attention.query",
    "model.layers.{}.self_attn.k_proj": "layers.attention.key",
    "model.layers.{}.self_attn.v_proj": "layers.attention.value",
    "model.layers.{}.self_attn.o_proj": "layers.attention.output",
    "model.layers.{}.post_attention_layernorm": "layers.mlp_norm",
    "model.layers.{}.mlp.gate_proj": "layers.mlp.gate",
    "model.layers.{}.mlp.up_proj": "layers.mlp.up",
    "model.layers.{}.mlp.down_proj": "layers.mlp.down",
    "model.norm": "final_norm",
    "lm_head": "head",
}
WITHOUT_EFFECT = frozenset(("max_position_embeddings", "use_cache"))


def llama_architecture(
    values: ConfigValues,
    *,
    bias: bool = False,
    output_bias: bool = False,
    mlp_bias: bool = False,
    activation: str = "hidden_act",
    kinds: tuple[LayerKind, ...] | None = None,
    attention: dict[str, Any] | None = None,
    mlp: Mlp | None = None,
    norm_offset: float = 0.0,
    soft_cap: float | None = None,
    dropout: Dropout | None = None,
    partial_rotation: bool = False,
    **others: Any,
) -> Architecture:
    """Returns the architecture of Llama with what differs from it.

    Args:
        values: A configuration with Llama's keys.
        bias: Whether the projections to queries, keys and values have biases.
        output_bias: Whether attention's output has.
        mlp_bias: Whether the MLP has.
        activation: The key of the activation.
        kinds: Of the layers; None: all rotate, without windows.
        attention: Further values of Attention.
        mlp: None: that of `intermediate_size`, gated.
        norm_offset: See Norm.
        soft_cap: See Head.
        dropout: Rates; None: only of attention's probabilities.
        partial_rotation: See `common.rope`.
        others: Further values of Architecture.
    """
    heads = values["num_attention_heads"]
    size = values.get("head_dim", values["hidden_size"] // heads)
    if "ropes" not in others:
        others["ropes"] = (rope(values, size, partial=partial_rotation),)
    shape = {
        "heads": heads,
        "key_heads": values.get("num_key_value_heads", heads),
        "head_size": size,
        "scale": default_scale(size),
        "bias": bias,
        "output_bias": output_bias,
    }
    return Architecture(
        vocabulary=values["vocab_size"],
        width=values["hidden_size"],
        causal=True,
        attention=Attention(**shape | (attention or {})),
        mlp=mlp
        or Mlp(
            size=values["intermediate_size"],
            activation=values.activation(activation),
            gated=True,
            bias=mlp_bias,
        ),
        norm=Norm(kind="rms", epsilon=values["rms_norm_eps"], offset=norm_offset),
        kinds=kinds or uniform(values["num_hidden_layers"], rope=0),
        head=Head(soft_cap=soft_cap),
        tied=values["tie_word_embeddings"],
        dropout=dropout or Dropout(probabilities=values["attention_dropout"]),
        initial=Initial(weights=values["initializer_range"]),
        **others,
    )


def _architecture(values: ConfigValues) -> Architecture:
    bias = values["attention_bias"]
    return llama_architecture(values, bias=bias, output_bias=bias, mlp_bias=values["mlp_bias"])


def llama_family(
    class_name: str,
    architecture: Callable[[ConfigValues], Architecture],
    *,
    modules: Mapping[str, str | Fused] = MODULES,
    without_effect: Collection[str] = (),
) -> Family:
    """Returns a family whose class has Llama's structure.

    Args:
        class_name: See Family.
        architecture: See Family.
        modules: See Family.
        without_effect: See Family; besides those of Llama.
    """
    return Family(
        objective="clm",
        class_name=class_name,
        architecture=architecture,
        modules=modules,
        copies=("lm_head",),
        without_effect=WITHOUT_EFFECT.union(without_effect),
        ignored_weights=(r"\.rotary_emb\.inv_freq$",),
    )


FAMILY = llama_family("LlamaForCausalLM", _architecture, without_effect=("pretraining_tp",))
