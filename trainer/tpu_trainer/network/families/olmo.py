"""OLMo 2 and 3, which normalize the outputs of attention and MLP, and OLMoE, which has experts."""

from __future__ import annotations

from typing import Any

from tpu_trainer.network.architecture import Architecture, Norm
from tpu_trainer.network.families.common import ropes_by_type, windowed
from tpu_trainer.network.families.family import ConfigValues, Fused
from tpu_trainer.network.families.llama import MODULES, llama_architecture, llama_family
from tpu_trainer.network.families.mixtures import expert_modules, experts

_LAYER = "model.layers.{}"
_NORMS: dict[str, str | Fused] = {
    f"{_LAYER}.self_attn.q_norm": "layers.attention.query_norm",
    f"{_LAYER}.self_attn.k_norm": "layers.attention.key_norm",
}
_MODULES: dict[str, str | Fused] = {
    name: ours for name, ours in (MODULES | _NORMS).items() if not name.endswith("layernorm")
} | {
    f"{_LAYER}.post_attention_layernorm": "layers.attention_norm_after",
    f"{_LAYER}.post_feedforward_layernorm": "layers.mlp_norm_after",
}


def _with_norms(values: ConfigValues, **others: Any) -> Architecture:
    bias = values["attention_bias"]
    return llama_architecture(
        values,
        bias=bias,
        output_bias=bias,
        attention={"norm": Norm(kind="rms", epsilon=values["rms_norm_eps"]), "norm_heads": False},
        **others,
    )


def _olmo2(values: ConfigValues, **others: Any) -> Architecture:
    return _with_norms(values, norm_place="after", **others)


def _olmo3(values: ConfigValues) -> Architecture:
    kinds = windowed(values, by_type=True)
    size = values.get("head_dim", values["hidden_size"] // values["num_attention_heads"])
    return _olmo2(values, kinds=kinds, ropes=ropes_by_type(values, size))


def _olmoe(values: ConfigValues) -> Architecture:
    values.require("clip_qkv", None)
    return _with_norms(
        values, mlp=experts(values, size=values["intermediate_size"], count=values["num_experts"])
    )


OLMO2 = llama_family("Olmo2ForCausalLM", _olmo2, modules=_MODULES)
OLMO3 = llama_family("Olmo3ForCausalLM", _olmo3, modules=_MODULES)
OLMOE = llama_family("OlmoeForCausalLM", _olmoe, modules=expert_modules(MODULES | _NORMS))
