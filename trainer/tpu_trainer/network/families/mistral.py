"""Mistral."""

from __future__ import annotations

from tpu_trainer.network.architecture import Architecture
from tpu_trainer.network.families.common import uniform
from tpu_trainer.network.families.family import ConfigValues
from tpu_trainer.network.families.llama import llama_architecture, llama_family


def _architecture(values: ConfigValues) -> Architecture:
    kinds = uniform(values["num_hidden_layers"], window=values["sliding_window"], rope=0)
    return llama_architecture(values, kinds=kinds)


FAMILY = llama_family("MistralForCausalLM", _architecture)
