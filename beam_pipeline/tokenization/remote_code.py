"""Folders whose tokenizer class is code in the folder (`auto_map`). No such code is ever run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from beam_pipeline.support.errors import UsageError
from beam_pipeline.tokenization.template import find_template
from beam_pipeline.tokenization.tokenizer_json import LoadedTokenizer

_REMEDY = (
    "to use its tokenizer.json as it is, remove auto_map and tokenizer_class from tokenizer_config.json, if that is "
    "the tokenizer that you want"
)

# Entries of a config that do not affect ids, or whose effect is checked. Others may be options of the code.
_HARMLESS = {
    *("add_bos_token", "add_eos_token", "added_tokens_decoder", "additional_special_tokens"),
    *("auto_map", "chat_template", "clean_up_tokenization_spaces", "decode_with_prefix_space"),
    *("extra_special_tokens", "legacy", "max_length", "model_input_names", "model_max_length"),
    *("name_or_path", "pad_to_multiple_of", "pad_token_type_id", "padding_side"),
    *("processor_class", "special_tokens_map_file", "stride", "tokenizer_class"),
    *("tokenizer_file", "truncation_side", "truncation_strategy", "use_default_system_prompt"),
    "use_fast",
    *(f"{name}_token" for name in ("pad", "mask", "bos", "eos", "cls", "sep", "unk")),
}


def code_classes(auto_map: Any) -> list[str | None]:
    """Returns the names of the slow and the fast tokenizer class in an `auto_map`. Both are code of the folder."""
    entry = auto_map.get("AutoTokenizer") if isinstance(auto_map, Mapping) else auto_map
    if entry is None:
        return []
    classes = entry if isinstance(entry, list) else [entry if isinstance(entry, str) else None]
    if classes and str(classes[0]).endswith("Fast") and not any(classes[1:]):
        return [None, classes[0]]  # there is no slow class, as in transformers 5
    return classes


def check_code(config: Mapping, name: str | None, auto_map: Any, loaded: LoadedTokenizer, path: str) -> str:
    """Checks that the code cannot change the ids of `tokenizer.json`.

    A fast class loads `tokenizer.json`. By convention it changes no more than the tokens around a text, according to
    `add_bos_token` and `add_eos_token`, and these must already be those of `tokenizer.json`.

    Args:
        config: The folder's `tokenizer_config.json`.
        name: The class that it names.
        auto_map: The entry that names the classes' code.
        loaded: The folder's `tokenizer.json`.
        path: The folder, for messages.

    Returns:
        A note for the user.

    Raises:
        UsageError: If the code may give other ids.
    """
    classes = code_classes(auto_map)
    code = f"--tokenizer {path}: its class {name or classes[-1]} is code (auto_map), which is not run"
    reason = None
    options = sorted(key for key, value in config.items() if value and key not in _HARMLESS)
    if len(classes) < 2 or not classes[1]:
        reason = "has no fast version, so its ids need not be those of tokenizer.json"
    elif options:
        reason = f"its options may change ids ({', '.join(options)})"
    else:
        template = find_template(loaded)
        for key, ids in (("add_bos_token", template.prefix), ("add_eos_token", template.suffix)):
            if key in config and bool(config[key]) != bool(ids):
                added = "such a" if ids else "no such"
                reason = f"{key} is {str(config[key]).lower()}, but tokenizer.json adds {added} token"
    if reason is not None:
        raise UsageError(f"{code}, and {reason}; {_REMEDY}")
    return f"{code}; tokenizer.json is used as it is"
