"""Writes the tokenizer of an exported model, such that transformers 4.57 and 5 give equal ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tpu_trainer.data.tokenizer import CONFIG, JSON, TokenizerFiles


def save_tokenizer(
    source: str, target: Path, *, max_length: int, token_types: bool, appends: bool = True
) -> None:
    """Writes the tokenizer of folder `source` into the folder `target`.

    PreTrainedTokenizerFast leaves tokenizer.json as it is. Other classes replace parts of it by their own defaults,
    which transformers 5 has changed.

    Args:
        source: Local or a URL.
        target: An existing folder.
        max_length: Tokens that the model takes.
        token_types: Whether the model has embeddings of token types. Others, such as GPT-2, look types up as ids.
        appends: Whether the tokenizer may append tokens to a text. A prompt must not end with the end token.
    """
    parts = TokenizerFiles.read(source)
    core = parts.core
    if not appends:
        core = core | {"post_processor": _without_suffix(parts.load())}
    names = parts.config.get("model_input_names") or ["input_ids", "attention_mask"]
    config = parts.config | {
        # transformers 4 changes the pre-tokenizer to agree with it.
        "add_prefix_space": bool((core.get("pre_tokenizer") or {}).get("add_prefix_space", False)),
        "added_tokens_decoder": {
            str(token["id"]): {name: value for name, value in token.items() if name != "id"}
            for token in core.get("added_tokens") or []
        },
        "model_input_names": [name for name in names if token_types or name != "token_type_ids"],
        "model_max_length": max_length,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    for name, values in ((JSON, core), (CONFIG, config)):
        text = json.dumps(values, indent=2, ensure_ascii=False, sort_keys=name == CONFIG)
        (target / name).write_text(text + "\n", encoding="utf-8")


def _without_suffix(tokenizer: Any) -> Any:
    """Returns the post-processor, as in tokenizer.json, that prepends the same tokens to a text and appends none."""
    from tokenizers.processors import TemplateProcessing

    processor = tokenizer.backend_tokenizer.post_processor
    text_ids = tokenizer("a", add_special_tokens=False)["input_ids"]
    ids = tokenizer("a")["input_ids"]
    length = next(n for n in range(len(ids) + 1) if ids[n : n + len(text_ids)] == text_ids)
    if length + len(text_ids) == len(ids):
        return None if processor is None else json.loads(processor.__getstate__())
    prefix = tokenizer.convert_ids_to_tokens(ids[:length])
    template = TemplateProcessing(
        single=[*prefix, "$A"],
        pair=[*prefix, "$A", "$B"],
        special_tokens=[(token, tokenizer.convert_tokens_to_ids(token)) for token in dict.fromkeys(prefix)],
    )
    return json.loads(template.__getstate__())
