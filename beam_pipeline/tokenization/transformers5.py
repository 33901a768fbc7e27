"""The configs that transformers 5 writes, in the form that transformers 4.57 and 5 both load."""

from __future__ import annotations

from collections.abc import Mapping

BACKEND_CLASS = "TokenizersBackend"

# Entries that describe how transformers 5 loaded the tokenizer that it saved.
_STATE = ("backend", "is_local", "local_files_only")


def is_of_version_5(config: Mapping) -> bool:
    """Whether transformers 5 has written a `tokenizer_config.json`, or transformers 4 cannot load it.

    Transformers 4 always adds `added_tokens_decoder`, and writes `extra_special_tokens` as an object.
    """
    if config.get("tokenizer_class") == BACKEND_CLASS or isinstance(config.get("extra_special_tokens"), list):
        return True
    if "model_specific_special_tokens" in config:
        return True
    return "backend" in config and "added_tokens_decoder" not in config


def in_version_4(config: Mapping) -> dict:
    """Returns the same config as transformers 4.57 writes it. Transformers 5 still reads that form.

    Version 5 has special tokens without a role in a list, `extra_special_tokens`, and those that have a name in
    `model_specific_special_tokens`. Version 4 calls these `additional_special_tokens` and `extra_special_tokens`.
    """
    changed = {key: value for key, value in config.items() if key not in _STATE}
    listed, named = list(changed.get("additional_special_tokens") or []), {}
    for key in ("extra_special_tokens", "model_specific_special_tokens"):
        tokens = changed.pop(key, None) or {}
        if isinstance(tokens, Mapping):
            named.update({name: _added_token(token) for name, token in tokens.items()})
        else:
            listed += map(_added_token, tokens)
    if listed:
        changed["additional_special_tokens"] = listed
    if named:
        changed["extra_special_tokens"] = named
    return changed


def _added_token(token: str | Mapping) -> str | dict:
    """Marks an object as a token, since transformers 4 would not recognize it otherwise."""
    return {**token, "__type": "AddedToken"} if isinstance(token, Mapping) else token
