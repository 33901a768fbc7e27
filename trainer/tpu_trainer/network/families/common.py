"""What the translations of several families share."""

from __future__ import annotations

import math
from typing import Any

from tpu_trainer.network.architecture import LayerKind
from tpu_trainer.network.families.family import ConfigValues
from tpu_trainer.network.rope import Rope, llama3_frequencies, plain_frequencies, yarn_frequencies


def rope(
    values: ConfigValues, head_size: int, layer_type: str | None = None, *, interleaved: bool = False
) -> Rope:
    """Returns the rotation that `rope_parameters` describe.

    Args:
        values: The configuration.
        head_size: Dimensions of a head.
        layer_type: Key of `rope_parameters`, if it has an entry for each type of layer.
        interleaved: See Rope.

    Raises:
        UsageError: If its type is not supported.
    """
    parameters = values["rope_parameters"]
    if layer_type is not None:
        parameters = parameters[layer_type]
    size = int(head_size * parameters.get("partial_rotary_factor", 1.0))
    theta, kind = parameters["rope_theta"], parameters.get("rope_type", "default")
    factor = 1.0
    if kind == "default":
        frequencies = plain_frequencies(size, theta)
    elif kind == "linear":
        frequencies = plain_frequencies(size, theta) / parameters["factor"]
    elif kind == "llama3":
        frequencies = llama3_frequencies(
            size,
            theta,
            factor=parameters["factor"],
            low=parameters["low_freq_factor"],
            high=parameters["high_freq_factor"],
            original=parameters["original_max_position_embeddings"],
        )
    elif kind == "yarn":
        frequencies, factor = _yarn(values, parameters, size)
    else:
        raise values.error(
            "rope_parameters", f"rope_type {kind!r} is not supported; must be default, linear, llama3 or yarn"
        )
    return Rope(frequencies=tuple(map(float, frequencies)), factor=factor, interleaved=interleaved)


def _yarn(values: ConfigValues, parameters: dict[str, Any], size: int) -> tuple[Any, float]:
    original = parameters.get("original_max_position_embeddings") or values["max_position_embeddings"]
    factor = parameters.get("factor") or values["max_position_embeddings"] / original
    frequencies = yarn_frequencies(
        size,
        parameters["rope_theta"],
        factor=factor,
        fast=parameters.get("beta_fast") or 32,
        slow=parameters.get("beta_slow") or 1,
        original=original,
        truncate=parameters.get("truncate", True),
    )

    def scale(share: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * share * math.log(factor) + 1.0

    if (attention_factor := parameters.get("attention_factor")) is not None:
        return frequencies, attention_factor
    full, part = parameters.get("mscale"), parameters.get("mscale_all_dim")
    return frequencies, scale(full) / scale(part) if full and part else scale(1)


def uniform(layers: int, **kind: Any) -> tuple[LayerKind, ...]:
    """Returns the kinds of equal layers."""
    return (LayerKind(**kind),) * layers
