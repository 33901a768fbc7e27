"""Loads a tokenizer's folder: tokenizer.json determines the ids, tokenizer_config.json the roles of special tokens.

No class that the folder names is used: classes of transformers change what tokenizer.json defines, differently in each
release, and may be code of the folder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tpu_trainer.support import files
from tpu_trainer.support.errors import UsageError

JSON, CONFIG, MAP = "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"
CHAT_TEMPLATE = "chat_template.jinja"
ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
# Earlier releases of transformers have the first name, 5 the second.
_FURTHER = ("additional_special_tokens", "extra_special_tokens")
# Of tokenizer_config.json, what PreTrainedTokenizerFast respects without changing ids.
_KEPT = ("chat_template", "clean_up_tokenization_spaces", "model_input_names", "model_max_length", "padding_side",
         "truncation_side")  # fmt: skip


@dataclass(frozen=True)
class TokenizerFiles:
    """The files of a tokenizer's folder."""

    core: dict[str, Any]
    """tokenizer.json, without padding and truncation."""
    config: dict[str, Any]
    """Of tokenizer_config.json, roles of tokens and values that change no ids, in transformers 4's terms."""

    @classmethod
    def read(cls, path: str) -> TokenizerFiles:
        """Reads the folder `path`, local or a URL.

        Raises:
            UsageError: If files are missing or damaged.
        """
        if not files.is_dir(path):
            raise UsageError(f"{path}: no such folder; give the tokenizer's folder with --data.tokenizer")
        if not files.is_file(files.join(path, JSON)):
            raise UsageError(
                f"{path}: contains no {JSON}; `tokenmill prepare` writes one, and so does save_pretrained() of a fast "
                "tokenizer"
            )
        core = _read(path, JSON) | {"padding": None, "truncation": None}
        named = {name: _read(path, name) for name in (MAP, CONFIG) if files.is_file(files.join(path, name))}
        values = {**named.get(MAP, {}), **named.get(CONFIG, {})}
        roles = {name: _content(value) for name in ROLES if (value := values.get(name)) is not None}
        further = [token for name in _FURTHER for token in _tokens(values.get(name))]
        config = {name: values[name] for name in _KEPT if values.get(name) is not None} | roles
        if files.is_file(files.join(path, CHAT_TEMPLATE)):
            config["chat_template"] = files.read_text(files.join(path, CHAT_TEMPLATE))
        if further:
            config[_FURTHER[0]] = list(dict.fromkeys(further))
        return cls(core, config)

    def load(self) -> Any:
        """Returns the PreTrainedTokenizerFast. Raises an exception of any type if the files are damaged."""
        from tokenizers import Tokenizer  # transformers takes seconds to import
        from transformers import PreTrainedTokenizerFast

        core = Tokenizer.from_str(json.dumps(self.core))
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, **self.config)
        # The class adds a post-processor if there is none.
        tokenizer.backend_tokenizer.post_processor = core.post_processor
        return tokenizer


def load_tokenizer(path: str) -> Any:
    """Loads the tokenizer in folder `path`, local or a URL, as PreTrainedTokenizerFast.

    Raises:
        UsageError: If there is none, or it is damaged.
    """
    parts = TokenizerFiles.read(path)
    try:
        return parts.load()
    except Exception as error:  # with damaged files, the libraries raise exceptions of many types
        raise UsageError(f"{files.join(path, JSON)}: cannot be loaded: {error}") from error


def _read(folder: str, name: str) -> dict[str, Any]:
    path = files.join(folder, name)
    try:
        values = json.loads(files.read_text(path))
    except (ValueError, RecursionError) as error:  # from JSON or UTF-8
        raise UsageError(f"{path}: not JSON: {error}") from error
    if not isinstance(values, dict):
        raise UsageError(f"{path}: not a JSON object")
    return values


def _tokens(value: Any) -> list[Any]:
    """Returns the tokens in a list, or in an object that names them."""
    tokens = value.values() if isinstance(value, Mapping) else value
    return [_content(token) for token in tokens] if isinstance(value, list | Mapping) else []


def _content(token: Any) -> Any:
    """Returns the text of a token, which may be written with its flags."""
    return token.get("content") if isinstance(token, Mapping) else token
