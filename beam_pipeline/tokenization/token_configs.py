"""The special tokens that a tokenizer's config names."""

from __future__ import annotations

from collections.abc import Mapping, ValuesView
from typing import Any

from beam_pipeline.support.errors import UsageError

SPECIAL_NAMES = ("pad", "mask", "bos", "eos", "cls", "sep", "unk")
_MAX_TOKEN_CHARS = 10_000

# They list special tokens without one of these roles. The last is written by transformers 5 alone.
_LISTS = ("additional_special_tokens", "extra_special_tokens", "model_specific_special_tokens")


def check_tokens(config: Mapping, name: str, path: str) -> None:
    """Checks the entries of a config that name tokens, since AutoTokenizer fails on others or does not return."""
    decoder = config.get("added_tokens_decoder") or {}
    lists = {key: config.get(key) or [] for key in _LISTS}
    tokens = {f"{role}_token": list(filter(None, [config.get(f"{role}_token")])) for role in SPECIAL_NAMES}
    tokens |= {key: value.values() if isinstance(value, Mapping) else value for key, value in lists.items()}
    tokens["added_tokens_decoder"] = decoder.values() if isinstance(decoder, Mapping) else None
    for key, found in tokens.items():
        if not isinstance(found, list | ValuesView) or not all(map(_is_token, found)):
            raise UsageError(
                f"--tokenizer {path}: {key} in {name} is not a token: a text of at most {_MAX_TOKEN_CHARS:,} "
                "characters, or an object with such a content"
            )


def _is_token(token: Any) -> bool:
    text = token.get("content") if isinstance(token, Mapping) else token
    is_text = isinstance(text, str) and not any("\ud800" <= char <= "\udfff" for char in text)
    return is_text and len(text) <= _MAX_TOKEN_CHARS


def content(token: str | Mapping) -> str:
    """Returns the text of a token in a config, where it is a string or an object with flags."""
    return token["content"] if isinstance(token, Mapping) else token


def named_tokens(config: Mapping) -> list[str]:
    """Returns the special tokens that a config names, with or without a role."""
    tokens = [config.get(f"{name}_token") for name in SPECIAL_NAMES] + additional_tokens(config)
    return [content(token) for token in tokens if token]


def additional_tokens(config: Mapping) -> list[str]:
    """Returns the special tokens that a config names without one of the roles in `SPECIAL_NAMES`."""
    found = []
    for key in _LISTS:
        value = config.get(key) or []
        found += value.values() if isinstance(value, Mapping) else value
    return list(map(content, found))
