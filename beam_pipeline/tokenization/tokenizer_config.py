"""`tokenizer_config.json`: the class and the special tokens that it names, in the form that AutoTokenizer respects.

The class `PreTrainedTokenizerFast` uses `tokenizer.json` unchanged in transformers 4 and 5. Other classes change parts
of it according to the config (Llama's add_bos_token, BERT's do_lower_case), or, in version 5, replace them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, ValuesView
from typing import Any

from beam_pipeline.support.errors import UsageError
from beam_pipeline.tokenization.folder_files import ADDED, MAP
from beam_pipeline.tokenization.tokenizer_classes import BACKEND_CLASS, PLAIN_CLASS
from beam_pipeline.tokenization.tokenizer_json import LoadedTokenizer
from tokenmill_reader.console.escaping import excerpt
from tokenmill_reader.format.names import SPECIAL_NAMES

_MAX_TOKEN_CHARS = 10_000

# Entries that list special tokens without one of these roles. Only transformers 5 writes the last one.
_LISTS = ("additional_special_tokens", "extra_special_tokens", "model_specific_special_tokens")

# Entries that describe how transformers 5 loaded the tokenizer that it saved.
_STATE = ("backend", "is_local", "local_files_only")

# Options that replace tokenizer.json or parts of it: in some release, also in that of the plain class.
_REPLACING_OPTIONS = (
    *("from_slow", "fast_tokenizer_files", "fix_mistral_regex"),
    *("add_bos_token", "add_eos_token", "auto_map"),
)


def check_tokens(config: Mapping, name: str, path: str) -> None:
    """Checks the entries of a config that name tokens, since AutoTokenizer fails on others or does not return."""
    decoder = config.get("added_tokens_decoder") or {}
    lists = {key: config.get(key) or [] for key in _LISTS}
    tokens = {f"{role}_token": list(filter(None, [config.get(f"{role}_token")])) for role in SPECIAL_NAMES}
    tokens |= {key: value.values() if isinstance(value, Mapping) else value for key, value in lists.items()}
    tokens["added_tokens_decoder"] = decoder.values() if isinstance(decoder, Mapping) else None
    for key, values in tokens.items():
        if not isinstance(values, list | ValuesView) or not all(map(_is_token, values)):
            raise UsageError(
                f"--tokenizer {path}: {key} in {name} is not a token: a text of at most {_MAX_TOKEN_CHARS:,} "
                "characters, or an object with such a content"
            )
    if not all(key.isdecimal() for key in decoder):
        raise UsageError(
            f"--tokenizer {path}: added_tokens_decoder in {name} has no tokens by their ids: "
            f"{excerpt(next(key for key in decoder if not key.isdecimal()))}"
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
    tokens = []
    for key in _LISTS:
        value = config.get(key) or []
        tokens += value.values() if isinstance(value, Mapping) else value
    return list(map(content, tokens))


def with_tokens_as_text(config: Mapping) -> dict:
    """Returns a config that names its special tokens by their texts. `added_tokens_decoder` has their flags."""
    changed = dict(config)
    for key in (*(f"{name}_token" for name in SPECIAL_NAMES), *_LISTS):
        value = config.get(key)
        if isinstance(value, list):
            changed[key] = list(map(content, value))
        elif isinstance(value, Mapping) and key in _LISTS:
            changed[key] = {name: content(token) for name, token in value.items()}
        elif key in config:
            changed[key] = content(value) if value else None
    return changed


def as_plain_class(config: Mapping, parsed: Mapping) -> dict:
    """Returns a config with which AutoTokenizer uses a parsed `tokenizer.json` unchanged."""
    # AutoTokenizer would change the pre-tokenizer to agree with the config.
    prefix_space = bool((parsed["pre_tokenizer"] or {}).get("add_prefix_space", False))
    entries = {key: value for key, value in config.items() if key not in _REPLACING_OPTIONS}
    return {**entries, "tokenizer_class": PLAIN_CLASS, "add_prefix_space": prefix_space}


def added_tokens_decoder(parsed: Mapping) -> dict[str, dict]:
    """Returns the `added_tokens_decoder` of a config that repeats the added tokens of a parsed `tokenizer.json`."""
    return {
        str(token["id"]): {key: value for key, value in token.items() if key != "id"}
        for token in parsed["added_tokens"]
    }


def is_consistent(config: Mapping, files: Mapping[str, bytes], loaded: LoadedTokenizer) -> bool:
    """Determines whether AutoTokenizer uses tokenizer.json unchanged, because no other file contradicts it."""
    # Tokens that other files define must be in tokenizer.json, with the same flags.
    parsed = loaded.parsed
    added = {str(number): token for number, token in loaded.tokenizer.get_added_tokens_decoder().items()}
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    for number, token in (config.get("added_tokens_decoder") or {}).items():
        own_token = added.get(number)
        if own_token is None or own_token.content != content(token):
            return False
        if any(getattr(own_token, flag) != token.get(flag, False) for flag in flags):
            return False
    if "added_tokens_decoder" not in config and ADDED in files:
        return False
    named = named_tokens(config) + named_tokens(json.loads(files.get(MAP, b"{}")))
    if parsed["padding"]:
        named.append(parsed["padding"]["pad_token"])
    if not set(named) <= {token.content for token in added.values()}:
        return False
    if any(config.get(key) is not None for key in _REPLACING_OPTIONS):
        return False
    own_token = (parsed["pre_tokenizer"] or {}).get("add_prefix_space")
    return own_token is None or own_token == config.get("add_prefix_space", False)


def is_of_version_5(config: Mapping) -> bool:
    """Determines whether transformers 5 has written a `tokenizer_config.json`, or transformers 4 cannot load it.

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
