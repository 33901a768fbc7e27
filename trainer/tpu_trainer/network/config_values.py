"""Checks values of a model's configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_MAX_NUMBER = 2**31 - 1
_OPTIONAL = frozenset(("num_key_value_heads", "rotary_dim", "sliding_window", "word_embed_proj_dim"))
"""Numeric values that may be null."""
_EXAMPLES = {
    "conv_act": "tanh",
    "conv_kernel_size": 3,
    "n_inner": 4,
    "norm_rel_ebd": "none",
    "position_buckets": -1,
    "share_att_key": False,
}
"""Valid values of options that are null by default."""


def value_error(name: str, value: Any, default: Any) -> str | None:
    """Returns the rule that a value violates; None if it is valid.

    Args:
        name: Name of the value, after attribute_map is applied.
        value: Any value from YAML or JSON.
        default: The model type's default, whose Python type `value` must have.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and not -_MAX_NUMBER <= value <= _MAX_NUMBER:  # including nan
        return f"must be a finite number of at most {_MAX_NUMBER}"
    if value is None and (name in _OPTIONAL or default is None):
        return None
    default = _EXAMPLES.get(name) if default is None else default
    if isinstance(default, bool):
        return None if isinstance(value, bool) else "must be true or false"
    if isinstance(default, int):
        minimum = min(default, 1)
        is_whole_number = is_number and isinstance(value, int) and value >= minimum
        return None if is_whole_number else f"must be a whole number of at least {minimum}"
    if isinstance(default, float):
        if "drop" in name:
            return None if is_number and 0 <= value < 1 else "must be a number of at least 0 and below 1"
        return None if is_number and value >= 0 else "must be a number and not negative"
    if isinstance(default, str) and not isinstance(value, str):
        return "must be a string"
    return None


def heads_error(config: PretrainedConfig) -> str | None:
    """Returns why the numbers of attention heads and the width in `config` do not fit; None if they do."""
    width, heads = config.hidden_size, config.num_attention_heads
    if width % heads:
        return f"hidden size {width} is not a multiple of the {heads} attention heads"
    shared = getattr(config, "num_key_value_heads", heads)
    if heads % shared:
        return f"the {heads} attention heads are not a multiple of the {shared} in num_key_value_heads"
    return None
