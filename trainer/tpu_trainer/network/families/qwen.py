"""Qwen 2 (and 2.5) and 3."""

from __future__ import annotations

from tpu_trainer.network.architecture import Architecture, Norm
from tpu_trainer.network.families.common import windowed
from tpu_trainer.network.families.family import ConfigValues, Fused
from tpu_trainer.network.families.llama import MODULES, llama_architecture, llama_family

# transformers translates them to `layer_types` and `sliding_window`.
_TRANSLATED = ("max_window_layers", "use_sliding_window")
QWEN3_MODULES: dict[str, str | Fused] = MODULES | {
    "model.layers.{}.self_attn.q_norm": "layers.attention.query_norm",
    "model.layers.{}.self_attn.k_norm": "layers.attention.key_norm",
}


def _qwen2(values: ConfigValues) -> Architecture:
    return llama_architecture(values, bias=True, kinds=windowed(values))


def _qwen3(values: ConfigValues) -> Architecture:
    bias = values["attention_bias"]
    return llama_architecture(
        values,
        bias=bias,
        output_bias=bias,
        kinds=windowed(values),
        attention={"norm": Norm(kind="rms", epsilon=values["rms_norm_eps"])},
    )


QWEN2 = llama_family("Qwen2ForCausalLM", _qwen2, without_effect=_TRANSLATED)
QWEN3 = llama_family("Qwen3ForCausalLM", _qwen3, modules=QWEN3_MODULES, without_effect=_TRANSLATED)
