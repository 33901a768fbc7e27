"""The supported families by model type."""

from __future__ import annotations

from tpu_trainer.network.families import (
    bert,
    distilbert,
    electra,
    gemma,
    gpt2,
    gpt_neox,
    gptj,
    llama,
    mistral,
    modernbert,
    olmo,
    opt,
    phi3,
    qwen,
    smollm3,
)
from tpu_trainer.network.families.family import Family

FAMILIES: dict[str, Family] = {
    "bert": bert.FAMILY,
    "camembert": bert.CAMEMBERT,
    "distilbert": distilbert.FAMILY,
    "electra": electra.FAMILY,
    "gemma2": gemma.GEMMA2,
    "gemma3_text": gemma.GEMMA3,
    "gpt2": gpt2.FAMILY,
    "gpt_neox": gpt_neox.FAMILY,
    "gptj": gptj.FAMILY,
    "llama": llama.FAMILY,
    "mistral": mistral.FAMILY,
    "modernbert": modernbert.FAMILY,
    "olmo2": olmo.OLMO2,
    "olmo3": olmo.OLMO3,
    "olmoe": olmo.OLMOE,
    "opt": opt.FAMILY,
    "phi3": phi3.FAMILY,
    "qwen2": qwen.QWEN2,
    "qwen3": qwen.QWEN3,
    "qwen3_moe": qwen.QWEN3_MOE,
    "roberta": bert.ROBERTA,
    "smollm3": smollm3.FAMILY,
    "xlm-roberta": bert.XLM_ROBERTA,
}
