"""Word boundaries, determined from the tokens alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

_METASPACE = "▁"
_APOSTROPHES = ("'", "’")


@dataclass(frozen=True, kw_only=True, eq=False)
class Words:
    """Word boundaries of a vocabulary of V tokens.

    Token b continues the word of the token a before it if `starts_inside_word[b]` and `ends_inside_word[a]`.
    """

    starts_inside_word: np.ndarray
    """Whether the token has no space before it and begins with a character inside of words, bool[V]."""
    ends_inside_word: np.ndarray
    """Whether the token ends with a character inside of words, bool[V]."""

    @classmethod
    def single(cls, size: int) -> Words:
        """Returns the boundaries of `size` tokens that are a word each."""
        return cls(starts_inside_word=np.zeros(size, bool), ends_inside_word=np.zeros(size, bool))

    @classmethod
    def from_tokenizer(cls, tokenizer: Any, size: int) -> Words | None:
        """Returns the boundaries of the first `size` ids of a Hugging Face tokenizer.

        They are None if its tokens do not show where words begin.
        """
        backend = tokenizer.backend_tokenizer
        # (`backend.to_str()` would contain the vocabulary, and print all ids without a token.)
        kinds = set(_kinds(backend.pre_tokenizer)) | set(_kinds(backend.decoder))
        tokens = [token or "" for token in tokenizer.convert_ids_to_tokens(range(size))]
        model = type(backend.model).__name__
        if model == "WordPiece":
            prefix = backend.model.continuing_subword_prefix
            starts_inside_word = [token.startswith(prefix) for token in tokens]
            return cls(
                starts_inside_word=np.array(starts_inside_word), ends_inside_word=np.ones(len(tokens), bool)
            )
        if "ByteLevel" in kinds:
            texts = _texts_of_bytes(tokens)
        elif "Metaspace" in kinds:
            texts = [token.replace(_METASPACE, " ") for token in tokens]
        elif model == "WordLevel":
            return cls.single(len(tokens))
        else:
            return None
        return cls(
            starts_inside_word=np.array([_starts_inside_word(t) for t in texts]),
            ends_inside_word=np.array([_ends_inside_word(t) for t in texts]),
        )


def _starts_inside_word(text: str) -> bool:
    return text[:1].isalnum() or text[:1] in _APOSTROPHES


def _ends_inside_word(text: str) -> bool:
    # A single space begins a word whose letters are separate tokens. An apostrophe is inside a word if no space
    # precedes it.
    return text == " " or text[-1:].isalnum() or text in _APOSTROPHES


def _kinds(component: Any) -> Iterator[str]:
    """Yields the types of a component of a tokenizer and of its nested components."""
    return _kinds_of(json.loads(component.__getstate__())) if component is not None else iter(())


def _kinds_of(component: Any) -> Iterator[str]:
    """Yields the types of a component of tokenizer.json and of its nested components."""
    if isinstance(component, dict):
        if "type" in component:
            yield component["type"]
        for value in component.values():
            yield from _kinds_of(value)
    elif isinstance(component, list):
        for value in component:
            yield from _kinds_of(value)


def _texts_of_bytes(tokens: list[str]) -> list[str]:
    """Decodes byte-level tokens, in which each character represents a byte. Incomplete characters become letters."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    bytes_of = {character: byte for byte, character in bytes_to_unicode().items()}
    texts = []
    for token in tokens:
        if all(character in bytes_of for character in token):
            raw = bytes(bytes_of[character] for character in token)
            texts.append(raw.decode(errors="replace").replace("\ufffd", "a"))
        else:  # an added token
            texts.append(token)
    return texts
