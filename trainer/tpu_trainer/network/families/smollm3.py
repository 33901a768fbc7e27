"""SmolLM3, some of whose layers do not rotate queries and keys."""

from __future__ import annotations

from dataclasses import replace

from tpu_trainer.network.architecture import Architecture
from tpu_trainer.network.families.common import windowed
from tpu_trainer.network.families.family import ConfigValues
from tpu_trainer.network.families.llama import llama_architecture, llama_family


def _architecture(values: ConfigValues) -> Architecture:
    bias, rotates = values["attention_bias"], values["no_rope_layers"]
    if len(rotates) < values["num_hidden_layers"]:
        raise values.error(
            "no_rope_layers", f"must have a value for each of {values['num_hidden_layers']} layers"
        )
    kinds = tuple(
        kind if rotates[number] else replace(kind, rope=None) for number, kind in enumerate(windowed(values))
    )
    others = {} if any(rotates[: len(kinds)]) else {"ropes": ()}
    return llama_architecture(
        values, bias=bias, output_bias=bias, mlp_bias=values["mlp_bias"], kinds=kinds, **others
    )


FAMILY = llama_family(
    "SmolLM3ForCausalLM",
    _architecture,
    # transformers translates the first two to `no_rope_layers` and `layer_types`; published configurations have the
    # others, too.
    without_effect=("no_rope_layer_interval", "use_sliding_window", "max_window_layers", "pretraining_tp"),
)
