"""Reads and writes config.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tpu_trainer.support import files
from tpu_trainer.support.errors import UsageError

if TYPE_CHECKING:
    from tpu_trainer.network.configuration import Configuration

CONFIG = "config.json"
# Each names code of a repository, or a compiled kernel, that transformers would load.
_CODE = ("auto_map", "custom_pipelines", "custom_generate", "trust_remote_code", "kernel_config", "use_kernels",
         "kernels")  # fmt: skip
_PART = "partial_rotary_factor"
_GENERAL = ("model_type", "transformers_version")
_ATTENTION = (
    "attn_implementation",
    "_attn_implementation",
    "experts_implementation",
    "_experts_implementation",
)


def read_config(folder: str) -> dict[str, Any]:
    """Returns the values in the config.json of a model's folder.

    Raises:
        UsageError: If it is missing, not a JSON object, or names code.
    """
    path = files.join(folder, CONFIG)
    if not files.is_file(path):
        raise UsageError(f"{folder}: no {CONFIG} there; use a folder written by `export`")
    try:
        values = json.loads(files.read_text(path))
    except (ValueError, RecursionError) as error:  # from JSON or UTF-8
        raise UsageError(f"{path}: not JSON: {error}") from error
    if not isinstance(values, dict):
        raise UsageError(f"{path}: not a JSON object")
    refuse_code(values, path)
    return values


def refuse_code(values: Mapping[str, Any], path: str) -> None:
    """Raises UsageError if a configuration would make transformers load code."""
    for name in _CODE:
        if values.get(name):
            raise UsageError(
                f"{path}: {name} is {values[name]!r}: it names code, which the trainer does not load; remove the entry "
                "if the model is of a type of transformers itself"
            )
    for name in _ATTENTION:
        # org/name is a kernel of the Hub.
        if "/" in str(values.get(name, "")):
            raise UsageError(
                f"{path}: {name} is {values[name]!r}: it names a kernel, which the trainer does not load; remove it"
            )


def config_text(configuration: Configuration, *, vocabulary: int) -> str:
    """Returns the config.json of an exported model, which transformers 4.57 and 5 read alike.

    It has all values of the type: defaults differ between releases.

    Args:
        configuration: The network's.
        vocabulary: The number of the file's ids.
    """
    from transformers import PretrainedConfig

    general = PretrainedConfig().to_dict()
    values = {
        name: value
        for name, value in configuration.values.items()
        if name in _GENERAL or name not in general or value != general[name]
    }
    if values["model_type"] == "qwen3_moe":
        values["num_experts"] = values["num_local_experts"]  # its name in transformers 4
    values |= _rotations_of_4(values) | {
        "architectures": [configuration.family.class_name],
        "dtype": "float32",
        "vocab_size": vocabulary,
    }
    return json.dumps(values, indent=2, sort_keys=True) + "\n"


def _rotations_of_4(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the entries for what `rope_parameters` describe in transformers 4, which does not read these."""
    rope, model_type = values.get("rope_parameters"), values["model_type"]
    if not rope:
        return {}
    full = rope.get("full_attention", rope)
    if model_type == "modernbert":
        local = rope["sliding_attention"]
        return {"global_rope_theta": full["rope_theta"], "local_rope_theta": local["rope_theta"]}
    scaling = {name: value for name, value in full.items() if name not in ("rope_theta", _PART)}
    entries = {"rope_scaling": None if full.get("rope_type", "default") == "default" else scaling}
    if model_type == "gpt_neox":
        return entries | {"rotary_emb_base": full["rope_theta"], "rotary_pct": full.get(_PART, 1.0)}
    entries["rope_theta"] = full["rope_theta"]
    if model_type == "gemma3_text":
        entries["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
    return entries if _PART not in full else entries | {_PART: full[_PART]}
