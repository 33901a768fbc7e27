"""Phi-3 and Phi-4, without LongRoPE."""

from __future__ import annotations

from tpu_trainer.network.architecture import Architecture, Dropout
from tpu_trainer.network.families.common import uniform
from tpu_trainer.network.families.family import ConfigValues, Fused
from tpu_trainer.network.families.llama import MODULES, llama_architecture, llama_family

_LAYER = "model.layers.{}"
_MODULES: dict[str, str | Fused] = {
    f"{_LAYER}.self_attn.qkv_proj": Fused(
        ("layers.attention.query", "layers.attention.key", "layers.attention.value")
    ),
    f"{_LAYER}.mlp.gate_up_proj": Fused(("layers.mlp.gate", "layers.mlp.up")),
}
_SEPARATE = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")


def _architecture(values: ConfigValues) -> Architecture:
    residual = values["resid_pdrop"]
    return llama_architecture(
        values,
        kinds=uniform(values["num_hidden_layers"], window=values["sliding_window"], rope=0),
        partial_rotation=True,
        dropout=Dropout(probabilities=values["attention_dropout"], attention=residual, mlp=residual),
    )


FAMILY = llama_family(
    "Phi3ForCausalLM",
    _architecture,
    modules=_MODULES | {name: ours for name, ours in MODULES.items() if not name.endswith(_SEPARATE)},
    # The first is for LongRoPE; PyTorch's class does not use the others of published configurations.
    without_effect=("original_max_position_embeddings", "embd_pdrop", "attention_bias"),
)
