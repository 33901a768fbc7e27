"""Which values of a model's configuration no network can be made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_MOST = 2**31 - 1
_OPTIONAL = frozenset(("num_key_value_heads", "rotary_dim", "sliding_window", "word_embed_proj_dim"))
"""Numbers that may be null."""


def value_error(name: str, value: Any, default: Any) -> str | None:
    """The rule that a value of the configuration breaks; None if it breaks none.

    Args:
        name: The configuration's own name of it.
        value: Anything that YAML or JSON can hold.
        default: The value of the type's own configuration, which has the kind that `value` must have; None: unknown.
    """
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and not -_MOST <= value <= _MOST:  # also if it is nan
        return f"must be a finite number of at most {_MOST}"
    if value is None and name in _OPTIONAL:
        return None
    if isinstance(default, bool):
        return None if isinstance(value, bool) else "must be true or false"
    if isinstance(default, int):
        least = min(default, 1)
        whole = number and isinstance(value, int) and value >= least
        return None if whole else f"must be a whole number of at least {least}"
    if isinstance(default, float):
        if "drop" in name:
            return None if number and 0 <= value < 1 else "must be a number of at least 0 and below 1"
        return None if number and value >= 0 else "must be a number that is not negative"
    if isinstance(default, str) and not isinstance(value, str):
        return "must be a word"
    return None


def heads_error(config: PretrainedConfig) -> str | None:
    """Why a network of `config` cannot share its width out among its attention heads; None: it can."""
    width, heads = config.hidden_size, config.num_attention_heads
    if width % heads:
        return f"its width of {width} is no multiple of its {heads} attention heads"
    shared = getattr(config, "num_key_value_heads", heads)
    if heads % shared:
        return f"its {heads} attention heads are no multiple of its num_key_value_heads, {shared}"
    return None
