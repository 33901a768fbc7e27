"""What the translations of several families share."""

from __future__ import annotations

import math
from typing import Any

from tpu_trainer.network.architecture import LayerKind
from tpu_trainer.network.families.family import ConfigValues
from tpu_trainer.network.frequencies import Rope, llama3_frequencies, plain_frequencies, yarn_frequencies

FULL, SLIDING = "full_attention", "sliding_attention"


def rope(
    values: ConfigValues,
    head_size: int,
    layer_type: str | None = None,
    *,
    interleaved: bool = False,
    partial: bool = True,
) -> Rope:
    """Returns the rotation that `rope_parameters` describe.

    Args:
        values: The configuration.
        head_size: Dimensions of a head.
        layer_type: Key of `rope_parameters`, if it has an entry for each type of layer.
        interleaved: See Rope.
        partial: Whether PyTorch's class can rotate a part of each head, which `partial_rotary_factor` determines.

    Raises:
        UsageError: If its type or the part is not supported.
    """
    parameters = values["rope_parameters"]
    if layer_type is not None:
        parameters = parameters[layer_type]
    part = parameters.get("partial_rotary_factor", 1.0)
    if part != 1 and not partial:
        raise values.error("rope_parameters", f"partial_rotary_factor {part} is not supported; must be 1.0")
    size = int(head_size * part)
    if not 2 <= size <= head_size:
        raise values.error(
            "rope_parameters", f"rotates {size} of {head_size} dimensions; must be 2 to {head_size}"
        )
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


def ropes_by_type(values: ConfigValues, head_size: int) -> tuple[Rope, Rope]:
    """Returns the rotations of layers without and with a window."""
    return tuple(rope(values, head_size, name, partial=False) for name in (FULL, SLIDING))


def windowed(
    values: ConfigValues, *, by_type: bool = False, window: int | None = None
) -> tuple[LayerKind, ...]:
    """Returns the kinds of layers with and without a window, as `layer_types` lists them.

    Args:
        values: The configuration.
        by_type: Whether both have rotations of their own, those of `ropes_by_type`.
        window: See LayerKind; None: that of `sliding_window`.

    Raises:
        UsageError: If a type is not supported, the list has another length than the layers, or there is no window.
    """
    types, window = values["layer_types"], window or values["sliding_window"]
    if len(types) != values["num_hidden_layers"]:
        raise values.error(
            "layer_types", f"must have a type for each of {values['num_hidden_layers']} layers"
        )
    for name in types:
        if name not in (FULL, SLIDING):
            raise values.error("layer_types", f"{name!r} is not supported; must be {FULL} or {SLIDING}")
    if SLIDING in types and window is None:
        raise values.error("sliding_window", f"layers of type {SLIDING} need a number")
    return tuple(
        LayerKind(window=window, rope=int(by_type)) if name == SLIDING else LayerKind(rope=0)
        for name in types
    )


def uniform(layers: int, **kind: Any) -> tuple[LayerKind, ...]:
    """Returns the kinds of equal layers."""
    return (LayerKind(**kind),) * layers
