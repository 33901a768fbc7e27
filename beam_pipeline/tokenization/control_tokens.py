"""Control tokens (`</s>`, `[MASK]`, …) that no text can forge: only a template puts them into a dataset.

`tokenizers` skips the added tokens that are marked special (`encode_special_tokens`). That leaves three ways from text
to a control token's id: an added token that is named as eos, say, but not marked special; the model's own vocabulary,
in which the token is a word, a piece, or the product of merges; and the model's unknown token. All three are closed
here, before any engine sees the tokenizer, whatever the text is and however it is normalized or split.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from beam_pipeline.errors import UsageError
from beam_pipeline.tokenization.tokenizer_json import (
    BYTE_ALPHABET,
    BYTE_TOKENS,
    entries,
    make_unreachable,
    parse_tokenizer,
    unknown_id,
)

_REMEDY = "change that in the tokenizer's folder, or allow text to encode to control tokens (--parse_special_tokens)"


def find_control_ids(
    tokenizer: Mapping, boundaries: Collection[int], others: Collection[int] = ()
) -> frozenset[int]:
    """The ids that no text may encode to.

    The model's unknown token is not among them, since unknown text must encode to it, unless it also marks a boundary.

    Args:
      tokenizer: a parsed `tokenizer.json`.
      boundaries: the ids of the tokens named bos, eos, cls, sep and mask.
      others: the ids of the pad token and of additional special tokens.
    """
    special = {token["id"] for token in tokenizer["added_tokens"] if token["special"]}
    return frozenset(boundaries) | ((special | set(others)) - {unknown_id(tokenizer["model"])})


def tokenizer_for_text(
    tokenizer_json: str, *, parse_special_tokens: bool, control_ids: Collection[int] = ()
) -> Mapping:
    """The parsed tokenizer as it is used for text.

    Args:
      tokenizer_json: the text of a `tokenizer.json`.
      parse_special_tokens: whether text may encode to control tokens.
      control_ids: the control tokens, beside the added tokens that are marked special.

    Raises:
      UsageError: text must not encode to control tokens, and this tokenizer cannot do without one of them.
    """
    tokenizer = parse_tokenizer(tokenizer_json)
    return tokenizer if parse_special_tokens else _without_control_tokens(tokenizer, control_ids)


def _without_control_tokens(tokenizer: Mapping, ids: Collection[int]) -> Mapping:
    """The tokenizer with all ids kept; if special tokens are skipped, text cannot reach the control tokens' ids."""
    hidden = find_control_ids(tokenizer, ids)
    model = tokenizer["model"]
    keys = sorted(key for key, number in entries(model) if number in hidden)
    unknown = unknown_id(model)
    if unknown in hidden:
        if not _knows_every_byte(tokenizer):
            token = next(key for key, number in entries(model) if number == unknown)
            raise UsageError(
                f"--tokenizer: its model encodes unknown text to the control token {token!r}; {_REMEDY}"
            )
        model = {**model, "unk_token": None}
    for key in keys:
        if len(key) == 1 or (model.get("byte_fallback") and key in BYTE_TOKENS):
            raise UsageError(
                f"--tokenizer: it names {key!r} as a control token, which is also how its model encodes this "
                f"character or byte of a text; {_REMEDY}"
            )
    model, names = make_unreachable(model, keys)
    added = [
        {**token, "special": True, "content": names.get(token["content"], token["content"])}
        if token["id"] in hidden
        else token
        for token in tokenizer["added_tokens"]
    ]
    # Its post-processor may name tokens that have other names now, and nothing here uses it.
    return {**tokenizer, "added_tokens": added, "model": model, "post_processor": None}


def _knows_every_byte(tokenizer: Mapping) -> bool:
    """Whether a BPE model can spell every text, so that its unknown token never arises."""
    model = tokenizer["model"]
    if model["type"] != "BPE":
        return False
    if model["byte_fallback"]:
        return model["vocab"].keys() >= set(BYTE_TOKENS)
    parts = repr([tokenizer["normalizer"], tokenizer["pre_tokenizer"]])
    affixes = model["continuing_subword_prefix"] or model["end_of_word_suffix"]
    return "'type': 'ByteLevel'" in parts and not affixes and model["vocab"].keys() >= BYTE_ALPHABET
