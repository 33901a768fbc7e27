"""`PreTrainedTokenizerFast`, the class with which AutoTokenizer uses `tokenizer.json` unchanged."""

from __future__ import annotations

import json
from collections.abc import Mapping

from beam_pipeline.tokenization.folder_files import ADDED, MAP
from beam_pipeline.tokenization.token_configs import content, named_tokens
from beam_pipeline.tokenization.tokenizer_json import LoadedTokenizer
from beam_pipeline.tokenization.transformers5 import BACKEND_CLASS

# Other classes may change parts of tokenizer.json according to their config (Llama's add_bos_token, BERT's
# do_lower_case).
PLAIN_CLASS = "PreTrainedTokenizerFast"
PLAIN_CLASSES = (PLAIN_CLASS, "PreTrainedTokenizer", BACKEND_CLASS)

# Options that replace tokenizer.json or change its pre-tokenizer.
REPLACING_OPTIONS = ("from_slow", "fast_tokenizer_files", "fix_mistral_regex")


def as_plain_class(config: Mapping, parsed: Mapping) -> dict:
    """Returns a config with which AutoTokenizer uses a parsed `tokenizer.json` unchanged."""
    # AutoTokenizer would change the pre-tokenizer to agree with the config.
    prefix_space = bool((parsed["pre_tokenizer"] or {}).get("add_prefix_space", False))
    kept = {key: value for key, value in config.items() if key not in (*REPLACING_OPTIONS, "auto_map")}
    return {**kept, "tokenizer_class": PLAIN_CLASS, "add_prefix_space": prefix_space}


def added_tokens_decoder(parsed: Mapping) -> dict[str, dict]:
    """Returns the `added_tokens_decoder` of a config that repeats the added tokens of a parsed `tokenizer.json`."""
    return {
        str(token["id"]): {key: value for key, value in token.items() if key != "id"}
        for token in parsed["added_tokens"]
    }


def is_consistent(config: Mapping, files: Mapping[str, bytes], loaded: LoadedTokenizer) -> bool:
    """Whether AutoTokenizer uses tokenizer.json unchanged, because no other file contradicts it."""
    # Tokens that other files define must be in tokenizer.json, with the same flags.
    given = loaded.parsed
    added = {str(number): token for number, token in loaded.tokenizer.get_added_tokens_decoder().items()}
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    for number, token in (config.get("added_tokens_decoder") or {}).items():
        here = added.get(number)
        if here is None or here.content != content(token):
            return False
        if any(getattr(here, flag) != token.get(flag, False) for flag in flags):
            return False
    if "added_tokens_decoder" not in config and ADDED in files:
        return False
    named = named_tokens(config) + named_tokens(json.loads(files.get(MAP, b"{}")))
    if given["padding"]:
        named.append(given["padding"]["pad_token"])
    if not set(named) <= {token.content for token in added.values()}:
        return False
    if any(config.get(key) for key in REPLACING_OPTIONS):
        return False
    here = (given["pre_tokenizer"] or {}).get("add_prefix_space")
    return here is None or here == config.get("add_prefix_space", False)
