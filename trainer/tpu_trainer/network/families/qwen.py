"""Qwen 2 (and 2.5) and 3, and the latter with experts."""

from __future__ import annotations

from tpu_trainer.network.architecture import Architecture, LayerKind, Mlp, Norm
from tpu_trainer.network.families.common import uniform, windowed
from tpu_trainer.network.families.family import ConfigValues, Fused
from tpu_trainer.network.families.llama import MODULES, llama_architecture, llama_family
from tpu_trainer.network.families.mixtures import expert_modules, experts

# transformers translates them to `layer_types` and `sliding_window`.
_TRANSLATED = ("max_window_layers", "use_sliding_window")
# Published configurations have it; PyTorch's class does not use it.
_IGNORED = ("use_mrope",)
_QWEN3_MODULES: dict[str, str | Fused] = MODULES | {
    "model.layers.{}.self_attn.q_norm": "layers.attention.query_norm",
    "model.layers.{}.self_attn.k_norm": "layers.attention.key_norm",
}


def _qwen2(values: ConfigValues) -> Architecture:
    return llama_architecture(values, bias=True, kinds=windowed(values))


def _qwen3(
    values: ConfigValues, kinds: tuple[LayerKind, ...] | None = None, mlp: Mlp | None = None
) -> Architecture:
    bias = values["attention_bias"]
    return llama_architecture(
        values,
        bias=bias,
        output_bias=bias,
        kinds=windowed(values) if kinds is None else kinds,
        attention={"norm": Norm(kind="rms", epsilon=values["rms_norm_eps"])},
        mlp=mlp,
    )


def _qwen3_moe(values: ConfigValues) -> Architecture:
    values.require("mlp_only_layers", [])
    values.require("decoder_sparse_step", 1)
    kinds = uniform(values["num_hidden_layers"], window=values["sliding_window"], rope=0)
    mlp = experts(values, size=values["moe_intermediate_size"], count=values["num_local_experts"])
    return _qwen3(values, kinds, mlp)


QWEN2 = llama_family("Qwen2ForCausalLM", _qwen2, without_effect=(*_TRANSLATED, *_IGNORED))
QWEN3 = llama_family("Qwen3ForCausalLM", _qwen3, modules=_QWEN3_MODULES, without_effect=_TRANSLATED)
QWEN3_MOE = llama_family(
    "Qwen3MoeForCausalLM",
    _qwen3_moe,
    modules=expert_modules(_QWEN3_MODULES),
    # There are no layers without experts.
    without_effect=("intermediate_size", *_TRANSLATED),
)
