"""The supported families by model type."""

from __future__ import annotations

from tpu_trainer.network.families import bert, gpt2, llama
from tpu_trainer.network.families.family import Family

FAMILIES: dict[str, Family] = {
    "bert": bert.FAMILY,
    "camembert": bert.CAMEMBERT,
    "gpt2": gpt2.FAMILY,
    "llama": llama.FAMILY,
    "roberta": bert.ROBERTA,
    "xlm-roberta": bert.XLM_ROBERTA,
}
