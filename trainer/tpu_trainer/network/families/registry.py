"""The supported families by model type."""

from __future__ import annotations

from tpu_trainer.network.families import bert, gemma, gpt2, llama, mistral, olmo, phi3, qwen, smollm3
from tpu_trainer.network.families.family import Family

FAMILIES: dict[str, Family] = {
    "bert": bert.FAMILY,
    "camembert": bert.CAMEMBERT,
    "gemma2": gemma.GEMMA2,
    "gemma3_text": gemma.GEMMA3,
    "gpt2": gpt2.FAMILY,
    "llama": llama.FAMILY,
    "mistral": mistral.FAMILY,
    "olmo2": olmo.OLMO2,
    "olmo3": olmo.OLMO3,
    "olmoe": olmo.OLMOE,
    "phi3": phi3.FAMILY,
    "qwen2": qwen.QWEN2,
    "qwen3": qwen.QWEN3,
    "qwen3_moe": qwen.QWEN3_MOE,
    "roberta": bert.ROBERTA,
    "smollm3": smollm3.FAMILY,
    "xlm-roberta": bert.XLM_ROBERTA,
}
