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
    values |= _rotations_of_4(values) | {
        "architectures": [configuration.family.class_name],
        "dtype": "float32",
        "vocab_size": vocabulary,
    }
    return json.dumps(values, indent=2, sort_keys=True) + "\n"


def _rotations_of_4(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the entries for what `rope_parameters` describe in transformers 4, which does not read these."""
    rope = values.get("rope_parameters")
    if not rope:
        return {}
    if "rope_theta" in rope:
        return _rotation(rope)
    full, local = rope["full_attention"], rope["sliding_attention"]
    if values["model_type"] == "modernbert":
        return {"global_rope_theta": full["rope_theta"], "local_rope_theta": local["rope_theta"]}
    return _rotation(full) | {"rope_local_base_freq": local["rope_theta"]}


def _rotation(rope: Mapping[str, Any]) -> dict[str, Any]:
    scaling = {
        name: value for name, value in rope.items() if name not in ("rope_theta", "partial_rotary_factor")
    }
    part = rope.get("partial_rotary_factor")
    return {
        "rope_theta": rope["rope_theta"],
        "rope_scaling": None if rope.get("rope_type", "default") == "default" else scaling,
        **({} if part is None else {"partial_rotary_factor": part, "rotary_pct": part}),
    }
