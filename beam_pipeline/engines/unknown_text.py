"""Models that cannot represent every text: those that fail on unknown characters, and those that drop them."""

from __future__ import annotations

from collections.abc import Mapping

from beam_pipeline.engines.hf import reference_tokenizer
from beam_pipeline.tokenization.byte_level import lost_bytes
from beam_pipeline.tokenization.characters import CharacterSet
from beam_pipeline.tokenization.tokenizer_json import unknown_id
from tokenmill_reader.console.escaping import excerpt


def describe_unknown(tokenizer: Mapping) -> str | None:
    """Describes how the model of a parsed tokenizer treats text that it has no token for.

    Returns:
        A sentence if it fails, or drops the text. None if it has an unknown token, or tokens for every text.
    """
    model = tokenizer["model"]
    if unknown_id(model) is not None or (model["type"] == "BPE" and lost_bytes(tokenizer) == frozenset()):
        return None
    name = None if model["type"] == "Unigram" else model["unk_token"]
    lacks = (
        "it has no unknown token"
        if name is None
        else f"its vocabulary lacks the unknown token '{excerpt(name)}'"
    )
    if _drops(tokenizer):
        return f"its model drops the characters that it does not know, since {lacks}; the run counts them"
    unit = "word" if model["type"].startswith("Word") else "character"
    return (
        f"its model cannot encode a {unit} that it does not know, since {lacks}; a document with one is a bad record, "
        "see --on_bad_record"
    )


def _drops(tokenizer: Mapping) -> bool:
    """Determines whether the model drops the characters or bytes that it does not know."""
    model = tokenizer["model"]
    return model["type"] == "BPE" and model["unk_token"] is None and lost_bytes(tokenizer) != frozenset()


def dropped_characters(tokenizer: Mapping, *, parse_special_tokens: bool) -> CharacterSet | None:
    """Returns the characters that encode to no token on their own, or lose a byte. None if the model drops none.

    Args:
        tokenizer: A parsed tokenizer, as `tokenizer_for_text` returns it.
        parse_special_tokens: See `Engine`.
    """
    if not _drops(tokenizer):
        return None
    lost = lost_bytes(tokenizer)
    if lost is not None:
        return CharacterSet(lambda chars: [not lost.isdisjoint(char.encode()) for char in chars])
    reference = reference_tokenizer(tokenizer, parse_special_tokens=parse_special_tokens)
    normalizer, pre_tokenizer = reference.normalizer, reference.pre_tokenizer

    def is_dropped(char: str) -> bool:
        if reference.encode(char, add_special_tokens=False).ids:
            return False
        # Text that is removed before the model, such as white space, is not dropped by the model.
        text = char if normalizer is None else normalizer.normalize_str(char)
        return bool(text if pre_tokenizer is None else pre_tokenizer.pre_tokenize_str(text))

    return CharacterSet(lambda chars: list(map(is_dropped, chars)))
