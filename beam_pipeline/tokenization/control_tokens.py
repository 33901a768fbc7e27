"""Control tokens (`</s>`, `[MASK]`, …), which no text can forge: only a template adds them to a dataset.

With `encode_special_tokens`, `tokenizers` treats added tokens that are marked special as plain text. That leaves three
ways from text to a control token's id: an added token that has a role, such as eos, but is not marked special; the
model's own vocabulary, in which the token is a word, a piece or the product of merges; and the model's unknown token.
This module closes all three before any engine gets the tokenizer, whatever the text is and however it is normalized or
split.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from beam_pipeline.support.errors import UsageError
from beam_pipeline.tokenization.byte_level import lost_bytes
from beam_pipeline.tokenization.tokenizer_json import (
    BYTE_TOKENS,
    entries,
    load_tokenizer,
    make_unreachable,
    unknown_id,
)
from tokenmill_reader.console.escaping import excerpt

_REMEDY = "change that in the tokenizer's folder, or allow text to encode to control tokens (--parse_special_tokens)"


def find_control_ids(
    tokenizer: Mapping, boundaries: Collection[int], additional: Collection[int] = ()
) -> frozenset[int]:
    """Returns the ids that no text may encode to.

    They do not include the model's unknown token, since unknown text must encode to it, unless it also marks a
    boundary.

    Args:
        tokenizer: A parsed `tokenizer.json`.
        boundaries: The ids of the bos, eos, cls, sep and mask tokens.
        additional: The ids of the pad token and of additional special tokens.
    """
    special = {token["id"] for token in tokenizer["added_tokens"] if token["special"]}
    return frozenset(boundaries) | ((special | set(additional)) - {unknown_id(tokenizer["model"])})


def tokenizer_for_text(
    tokenizer_json: str, *, parse_special_tokens: bool, control_ids: Collection[int] = ()
) -> Mapping:
    """Parses a tokenizer for encoding text.

    Args:
        tokenizer_json: The content of a `tokenizer.json`.
        parse_special_tokens: Whether text may encode to control tokens.
        control_ids: Control tokens in addition to the added tokens that are marked special.

    Raises:
        UsageError: If text must not encode to control tokens, and this tokenizer cannot encode text without one.
    """
    tokenizer = load_tokenizer(tokenizer_json).parsed
    return tokenizer if parse_special_tokens else _without_control_tokens(tokenizer, control_ids)


def _without_control_tokens(tokenizer: Mapping, ids: Collection[int]) -> Mapping:
    """Makes the ids of control tokens unreachable for text, if special tokens are not parsed. All ids stay the same."""
    control_ids = find_control_ids(tokenizer, ids)
    model = tokenizer["model"]
    keys = sorted(key for key, number in entries(model) if number in control_ids)
    unknown = unknown_id(model)
    if unknown in control_ids:
        if model["type"] != "BPE" or lost_bytes(tokenizer) != frozenset():
            token = next(key for key, number in entries(model) if number == unknown)
            raise UsageError(
                f"--tokenizer: its model encodes unknown text to the control token '{excerpt(token)}'; {_REMEDY}"
            )
        model = {**model, "unk_token": None}
    for key in keys:
        if len(key) == 1 or (model.get("byte_fallback") and key in BYTE_TOKENS):
            raise UsageError(
                f"--tokenizer: '{excerpt(key)}' is a control token, but the model also needs it to encode this "
                f"character or byte of a text; {_REMEDY}"
            )
    model, names = make_unreachable(model, keys)
    added_tokens = [
        {**token, "special": True, "content": names.get(token["content"], token["content"])}
        if token["id"] in control_ids
        else token
        for token in tokenizer["added_tokens"]
    ]
    # The post-processor may refer to tokens that were renamed, and it is not used for text.
    return {**tokenizer, "added_tokens": added_tokens, "model": model, "post_processor": None}
