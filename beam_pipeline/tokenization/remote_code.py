"""Folders whose tokenizer class is code in the folder (`auto_map`). No such code is ever run."""

from __future__ import annotations

from collections.abc import Mapping

from beam_pipeline.support.amounts import counted
from beam_pipeline.support.errors import UsageError
from beam_pipeline.tokenization.conversion import is_known_class
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


def runs_code(config: Mapping) -> bool:
    """Determines whether AutoTokenizer would need code of the folder for a tokenizer with this config."""
    name = config.get("tokenizer_class")
    if not isinstance(name, str) or not _classes(config):
        return False
    return not is_known_class(name)


def config_without_code(config: Mapping, loaded: LoadedTokenizer, path: str) -> tuple[dict, str]:
    """Returns a config with which `tokenizer.json` alone determines the ids, if the code cannot change them.

    A fast class loads `tokenizer.json`. By convention it changes no more than the tokens around a text, according to
    `add_bos_token` and `add_eos_token`, and these must already be those of `tokenizer.json`.

    Returns:
        The config, and a note for the user.

    Raises:
        UsageError: If the code may give other ids.
    """
    name, classes = config["tokenizer_class"], _classes(config)
    code = f"--tokenizer {path}: its class {name} is code (auto_map), which is not run"
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
    plain_config = {key: value for key, value in config.items() if key != "auto_map"}
    note = f"{code}; tokenizer.json is used as it is"
    added = config.get("added_tokens_decoder") or {}
    if not isinstance(added, Mapping) or not all(isinstance(token, Mapping) for token in added.values()):
        raise UsageError(
            f"--tokenizer {path}: added_tokens_decoder in tokenizer_config.json has no tokens by their ids"
        )
    renumbered = [
        f"{token.get('content')} ({number})"
        for number, token in added.items()
        if str(loaded.tokenizer.token_to_id(str(token.get("content")))) != number
    ]
    if renumbered:
        shown = renumbered[0] + (", …" if len(renumbered) > 1 else "")
        note += f", without {counted(len(renumbered), 'token')} of tokenizer_config.json ({shown}): they get new ids"
    return plain_config, note


def _classes(config: Mapping) -> list[str | None]:
    """Returns the names of the slow and the fast class, if these are code."""
    auto_map = config.get("auto_map")
    entry = auto_map.get("AutoTokenizer") if isinstance(auto_map, Mapping) else auto_map
    classes = [entry] if isinstance(entry, str) else entry if isinstance(entry, list) else []
    if classes and str(classes[0]).endswith("Fast") and not any(classes[1:]):
        return [None, classes[0]]  # there is no slow class, as in transformers 5
    return classes
