"""Applies what other files of a folder define to its `tokenizer.json`, which then determines all ids alone.

Ids come from `tokenizer.json`. Only entries that are written in `tokenizer_config.json` change it: no defaults of a
class, which releases of transformers change. Every change is made in the file's own JSON, so the bytes of the result
do not depend on releases of libraries.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tokenizers import AddedToken, Tokenizer

from beam_pipeline.support.amounts import counted
from beam_pipeline.support.errors import UsageError
from beam_pipeline.tokenization.folder_files import ADDED, CONFIG, JSON, MAP, MODEL_CONFIG, dump_json
from beam_pipeline.tokenization.template import find_template, template_processor, with_ids
from beam_pipeline.tokenization.tokenizer_classes import TokenizerClass
from beam_pipeline.tokenization.tokenizer_config import (
    added_tokens_decoder,
    additional_tokens,
    as_plain_class,
    content,
    with_tokens_as_text,
)
from beam_pipeline.tokenization.tokenizer_json import LoadedTokenizer, dump_with_model, load_tokenizer
from tokenmill_reader.console.escaping import excerpt

_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")

# Tokens that a tokenizer lacks are numbered in this order, in all releases of transformers.
_ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")

# Options of BERT's classes, and the entries of their normalizer.
_BERT_OPTIONS = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}


def resolve(
    files: Mapping[str, bytes],
    config: Mapping[str, Any],
    loaded: LoadedTokenizer,
    tokenizer_class: TokenizerClass,
    path: str,
    *,
    post_processor: Mapping | None = None,
) -> tuple[dict[str, bytes], list[str]]:
    """Returns the files of a folder with a `tokenizer.json` that determines all ids, and notes for the user.

    Args:
        files: The content of the folder's files by name.
        config: The folder's `tokenizer_config.json`, with the roles that other files name.
        loaded: The folder's `tokenizer.json`.
        tokenizer_class: The class that the folder names.
        path: The folder, for messages.
        post_processor: The post-processor to add, without ids, if `tokenizer.json` was made of the folder's vocabulary.
            Then the class's own tokens are added, too, if the vocabulary lacks them.

    Raises:
        UsageError: If the config contradicts itself.
    """
    is_converted = post_processor is not None
    config = {**_default_roles(config, loaded, tokenizer_class, add_missing=is_converted), **config}
    parts = {**_with_options(loaded.parts, config, tokenizer_class), **_without_limits(loaded.parts)}
    named = dict(_named_tokens(files, config, tokenizer_class))
    if is_converted:  # the class's flags are preferred to those of SentencePiece's control tokens
        parts["added_tokens"] = [token for token in parts["added_tokens"] if token["content"] not in named]
    parts, notes = _with_tokens(parts, named, files[JSON])
    if not is_converted and _contradicts_template(config, loaded):
        if tokenizer_class.has_template_options:
            post_processor = _template_of_options(config, loaded, path)
        else:
            notes.append(
                "ignores add_bos_token and add_eos_token: its tokenizer.json says which tokens it adds"
            )
    if post_processor is not None:
        tokenizer = Tokenizer.from_str(dump_with_model(parts, files[JSON]).decode())
        parts["post_processor"] = with_ids(post_processor, tokenizer)
    data = files[JSON] if parts == loaded.parts else dump_with_model(parts, files[JSON])
    resolved = load_tokenizer(data.decode())
    if tokenizer_class.roles and not config.get("model_input_names"):
        types = ["token_type_ids"] if tokenizer_class.has_token_types else []
        config["model_input_names"] = ["input_ids", *types, "attention_mask"]
    config = {
        **with_tokens_as_text(as_plain_class(config, resolved.parsed)),
        "added_tokens_decoder": added_tokens_decoder(resolved.parsed),
    }
    kept = {name: content for name, content in files.items() if name not in (ADDED, MAP, MODEL_CONFIG)}
    notes = [f"--tokenizer {path}: {note}" for note in notes]
    return {**kept, JSON: data, CONFIG: dump_json(config)}, notes


def _default_roles(
    config: Mapping, loaded: LoadedTokenizer, tokenizer_class: TokenizerClass, *, add_missing: bool
) -> dict[str, str]:
    """Returns the class's own special tokens: those in the vocabulary, or all."""
    return {
        f"{role}_token": token
        for role, token in tokenizer_class.roles.items()
        if f"{role}_token" not in config and (add_missing or loaded.tokenizer.token_to_id(token) is not None)
    }


def _without_limits(parts: Mapping) -> dict[str, None]:
    """Returns the entries that remove a saved padding and truncation, since AutoTokenizer would apply them."""
    return {name: None for name in ("padding", "truncation") if parts.get(name)}


def _with_options(parts: Mapping, config: Mapping, tokenizer_class: TokenizerClass) -> dict:
    """Applies options of the config to the normalizer and the pre-tokenizer, as their classes do."""
    changed = dict(parts)
    pre_tokenizer, normalizer = parts.get("pre_tokenizer"), parts.get("normalizer")
    prefix_space = config.get("add_prefix_space")
    if pre_tokenizer and pre_tokenizer.get("type") == "ByteLevel" and prefix_space is not None:
        changed["pre_tokenizer"] = {**pre_tokenizer, "add_prefix_space": bool(prefix_space)}
    if normalizer and normalizer.get("type") == "BertNormalizer" and not tokenizer_class.is_plain:
        options = {key: config[option] for option, key in _BERT_OPTIONS.items() if option in config}
        entries = {key: bool(value) for key, value in options.items() if value is not None}
        changed["normalizer"] = {**normalizer, **entries}
    return changed


def _with_tokens(
    parts: Mapping, named: Mapping[str, tuple[int | None, AddedToken]], data: bytes
) -> tuple[dict, list[str]]:
    """Adds the tokens that other files name to the added tokens of a `tokenizer.json`.

    Args:
        parts: The components of the tokenizer without its model.
        named: The id that another file gives to a token, if any, and its flags, by content.
        data: The content of the tokenizer.json with the model.

    Returns:
        The changed parts, and a note if tokens get other ids than the files say.
    """
    present = {token["content"] for token in parts["added_tokens"]}
    missing = {text: token for text, token in named.items() if text not in present}
    if not missing:
        return dict(parts), []
    tokenizer = Tokenizer.from_str(dump_with_model(parts, data).decode())
    tokenizer.add_tokens([token for _, token in missing.values()])
    ids = {text: tokenizer.token_to_id(text) for text in missing}
    added = [
        {"id": ids[text], "content": text, **{flag: getattr(token, flag) for flag in _FLAGS}}
        for text, (_, token) in missing.items()
    ]
    changed = {**parts, "added_tokens": [*parts["added_tokens"], *added]}
    renumbered = [
        f"{text} ({number})" for text, (number, _) in missing.items() if number not in (None, ids[text])
    ]
    if not renumbered:
        return changed, []
    shown = excerpt(renumbered[0]) + (", …" if len(renumbered) > 1 else "")
    note = (
        f"tokenizer.json lacks {counted(len(renumbered), 'token')} of other files ({shown}): they get new ids"
    )
    return changed, [note]


def _named_tokens(
    files: Mapping[str, bytes], config: Mapping, tokenizer_class: TokenizerClass
) -> Iterator[tuple[str, tuple[int | None, AddedToken]]]:
    """Yields the tokens that files other than `tokenizer.json` name, in the order in which missing ones are numbered.

    Yields:
        A token's content, its id in these files, if any, and the token with its flags. No token comes twice.
    """
    roles = {role: token for role in _ROLES if (token := config.get(f"{role}_token"))}
    special = dict.fromkeys([*map(content, roles.values()), *additional_tokens(config)])
    numbered = {int(number): token for number, token in (config.get("added_tokens_decoder") or {}).items()}
    if not numbered:
        numbered = {number: token for token, number in json.loads(files.get(ADDED, b"{}")).items()}
    for number, token in sorted(numbered.items()):
        text = content(token)
        is_special = text in special or (isinstance(token, Mapping) and bool(token.get("special")))
        special.pop(text, None)
        yield text, (number, _added_token(token, special=is_special))
    strips = tokenizer_class.roles.get("mask") if tokenizer_class.mask_absorbs_space else None
    flags = {content(token): token for token in roles.values()}
    for text in special:
        yield text, (None, _added_token(flags.get(text, text), special=True, lstrip=text == strips))


def _added_token(token: str | Mapping, *, special: bool, lstrip: bool = False) -> AddedToken:
    flags = (
        {flag: bool(token[flag]) for flag in _FLAGS if flag in token} if isinstance(token, Mapping) else {}
    )
    flags = {"lstrip": lstrip, "normalized": not special, **flags, "special": bool(special)}
    return AddedToken(content(token), **flags)


def _contradicts_template(config: Mapping, loaded: LoadedTokenizer) -> bool:
    """Determines whether `add_bos_token` or `add_eos_token` asks for another template than that of the tokenizer."""
    options = [config.get(f"add_{role}_token") for role in ("bos", "eos")]
    if options == [None, None]:
        return False
    template = find_template(loaded)
    present = (template.prefix, template.suffix)
    pairs = zip(options, present, strict=True)
    return any(option is not None and bool(option) != bool(ids) for option, ids in pairs)


def _template_of_options(config: Mapping, loaded: LoadedTokenizer, path: str) -> dict:
    """Returns the post-processor that `add_bos_token` and `add_eos_token` ask for."""
    template, tokens = find_template(loaded), []
    for role, ids in (("bos", template.prefix), ("eos", template.suffix)):
        option, token = config.get(f"add_{role}_token"), config.get(f"{role}_token")
        if option and not token:
            raise UsageError(
                f"--tokenizer {path}: add_{role}_token is true in tokenizer_config.json, and no file names the "
                f"{role}_token; add it, or remove add_{role}_token"
            )
        if option is None or bool(option) == bool(ids):
            tokens.append(tuple(map(loaded.tokenizer.id_to_token, ids)))
        else:
            tokens.append((content(token),) if option else ())
    first, last = tokens
    return template_processor(first, last, (first, last), 1)
