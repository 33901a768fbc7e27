"""The libraries behind the fast engines, each with the characters on which it is not exact."""

from __future__ import annotations

import contextlib
import json
import tempfile
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from tokenizers import Tokenizer

from beam_pipeline.engines.byte_unigram import ByteUnigramModel
from beam_pipeline.engines.dropped_bytes import DroppedBytes
from beam_pipeline.engines.hf import batches, encode_flat
from beam_pipeline.engines.token_arrays import FlatIds, ranges
from beam_pipeline.engines.tokenizer_parts import (
    BYTE_LEVEL,
    BYTE_UNIGRAM,
    SENTENCEPIECE,
    UNIGRAM,
    WORDPIECE,
    TokenizerParts,
)
from beam_pipeline.engines.unigram_model import UnigramModel
from beam_pipeline.support import memory
from beam_pipeline.support.errors import one_line
from beam_pipeline.tokenization.library_errors import is_panic
from beam_pipeline.tokenization.normalization import LONGEST_WORD
from beam_pipeline.tokenization.tokenizer_json import UnsupportedComponent, unknown_id

# gigatoken caches every distinct word, at about 170 bytes each, and cannot empty its cache. If the process has grown by
# this many bytes since the tokenizer was loaded, it is loaded again.
_MAX_GROWTH = 256 << 20

# tokie caches every distinct word of Unigram texts, at about 100 bytes each. A new tokenizer empties the cache of an
# old one, or takes that of another CPU, and frees no memory. So it is loaded again if the process has grown as much
# since the first time, but only after this many characters.
_CHARS_PER_CACHE = 256 << 20

# gigatoken's batches import awkward, which takes 0.3 s of CPU. So the first texts are encoded one by one: at the same
# speed per character, but each takes as long as 150 characters more. Until the sum of both numbers reaches the limit,
# that takes less than the import.
_CHARS_PER_CALL = 500
_FEW_CHARS = 16 << 20


_UNIGRAM_MODELS = {UNIGRAM: UnigramModel, BYTE_UNIGRAM: ByteUnigramModel}

# A noncharacter of Unicode that joins pieces of text. HF encodes the few words that contain it.
_SEPARATOR = "\uffff"


def _separator(number: int) -> dict[str, Any]:
    """Returns the added token for the separator."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": number, "content": _SEPARATOR, **flags}


@contextlib.contextmanager
def _loading(name: str) -> Iterator[None]:
    """Raises UnsupportedComponent for any error of a library that cannot load a tokenizer."""
    try:
        yield
    except ImportError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        raise UnsupportedComponent(f"{name} cannot load it: {one_line(error)}") from error


class Core(Protocol):
    """A library that encodes normalized pieces of text."""

    name: str
    max_piece_chars: int
    """Maximum length of a piece in characters; at most `LONGEST_WORD`."""
    inexact_strings: Collection[str]
    """Strings on which the library may differ from the exact tokenizer. They contain no space."""
    is_exact: bool
    """Whether the library never differs on characters, so that `inexact` need not be called."""

    @staticmethod
    def check(parts: TokenizerParts) -> None:
        """Raises `UnsupportedComponent` for a tokenizer that the library does not support, without importing it."""

    def encode(self, pieces: Sequence[str]) -> FlatIds:
        """Returns the ids of all pieces (uint32 [tokens]) and the number in each piece (int64 [pieces])."""

    def inexact(self, chars: Sequence[str], exact: Callable[[], Tokenizer]) -> Iterable[bool]:
        """Determines for each of some characters whether the library may differ on it from the exact tokenizer.

        Args:
            chars: Different characters.
            exact: Returns the exact tokenizer.
        """

    def inexact_positions(self, texts: Sequence[str]) -> dict[int, list[int]]:
        """Returns the other positions where the library may differ, ascending, by the index of the text."""


class GigatokenCore:
    """The library gigatoken: byte-level BPE, and BPE with byte fallback."""

    name = "gigatoken"
    max_piece_chars = LONGEST_WORD

    @staticmethod
    def check(parts: TokenizerParts) -> None:
        if parts.kind not in (BYTE_LEVEL, SENTENCEPIECE):
            raise UnsupportedComponent(f"gigatoken supports BPE only, and this is a {parts.kind} tokenizer")

    def __init__(self, parts: TokenizerParts, threads: int):
        self.check(parts)
        # A model with byte fallback knows all bytes, and its splits do not depend on Unicode categories.
        self.is_exact = parts.kind == SENTENCEPIECE
        # Batches of such a model begin with an empty cache of words, which takes about twice the CPU. But Python's lock
        # is held while a single text is encoded, so with more threads, batches are faster.
        self._joins_pieces = parts.kind == SENTENCEPIECE and threads <= 2
        self._separator_id = 1 + max(parts.core["model"]["vocab"].values(), default=-1)
        separators = [_separator(self._separator_id)] if parts.kind == SENTENCEPIECE else []
        self.inexact_strings = {*parts.removed_tokens, *(token["content"] for token in separators)}
        self._json = json.dumps({**parts.core, "added_tokens": separators})
        self._dropped_bytes = DroppedBytes(parts.exact["model"]) if parts.kind == BYTE_LEVEL else None
        self._is_inexact = parts.is_inexact
        self._parallel = threads > 1
        self._chars = 0
        with _loading(self.name):
            self._load()

    def _load(self) -> None:
        import gigatoken

        self._tokenizer = gigatoken.Tokenizer.from_json(self._json)
        self._memory = memory.private_bytes()

    def _limit_cache(self) -> None:
        if self._memory is not None and memory.private_bytes() > self._memory + _MAX_GROWTH:
            self._load()  # other threads finish with the old one

    def encode(self, pieces: Sequence[str]) -> FlatIds:
        ids, lengths = self._encode_all(pieces)
        return (ids, lengths) if self._dropped_bytes is None else self._dropped_bytes.remove(ids, lengths)

    def _encode_all(self, pieces: Sequence[str]) -> FlatIds:
        self._limit_cache()
        self._chars += sum(map(len, pieces)) + _CHARS_PER_CALL * len(pieces)
        if self._joins_pieces and pieces:
            flats = [self._encode_joined(_SEPARATOR.join(batch)) for batch in batches(pieces)]
            ids, lengths = map(np.concatenate, zip(*flats, strict=True))
            return ids, lengths
        if self._chars <= _FEW_CHARS:
            encodings = list(map(self._tokenizer.encode, pieces))
            lengths = np.fromiter(map(len, encodings), np.int64, len(encodings))
            return np.concatenate([np.empty(0, np.uint32), *encodings]), lengths
        layout = self._tokenizer.encode_batch(list(pieces), parallel=self._parallel).layout
        ids = np.asarray(layout.content.data)
        return ids, np.diff(np.asarray(layout.offsets.data).astype(np.int64, copy=False))

    def _encode_joined(self, joined: str) -> FlatIds:
        """Encodes pieces in a single call: tens of thousands between line breaks that are added tokens, for example."""
        ids = self._tokenizer.encode(joined)
        is_separator = ids == self._separator_id
        ends = np.append(np.flatnonzero(is_separator), len(ids))
        return ids[~is_separator], np.diff(ends, prepend=-1) - 1

    def inexact(self, chars: Sequence[str], exact: Callable[[], Tokenizer]) -> Iterable[bool]:
        """Finds characters of three kinds.

        - Characters newer than this Python's Unicode: gigatoken may treat them as letters, `tokenizers` does not.
        - Characters with a byte that is not in the vocabulary, unless it can be dropped from the ids.
        - Characters that gigatoken's pre-tokenizer splits differently.
        """
        missing = self._dropped_bytes.inexact if self._dropped_bytes else frozenset()
        return (
            unicodedata.category(char) == "Cn"
            or not missing.isdisjoint(char.encode())
            or (self._is_inexact is not None and self._is_inexact(char))
            for char in chars
        )

    def inexact_positions(self, texts: Sequence[str]) -> dict[int, list[int]]:
        return {} if self._dropped_bytes is None else self._dropped_bytes.positions(texts)


class TokieCore:
    """The library tokie: Unigram and WordPiece."""

    name = "tokie"

    @property
    def max_piece_chars(self) -> int:
        # tokie cuts words of more than 64 KiB. A character has at most 4 bytes, and 8 if each byte is a character.
        return 8_000 if isinstance(self._unigram, ByteUnigramModel) else 16_000

    @staticmethod
    def check(parts: TokenizerParts) -> None:
        model, normalizer = parts.core["model"], parts.core["normalizer"]
        if parts.kind not in (*_UNIGRAM_MODELS, WORDPIECE):
            raise UnsupportedComponent(
                f"tokie supports Unigram and WordPiece only, and this is a {parts.kind} tokenizer"
            )
        if parts.kind in _UNIGRAM_MODELS:
            _UNIGRAM_MODELS[parts.kind](model)
            return
        if normalizer["strip_accents"] not in (None, normalizer["lowercase"]):
            raise UnsupportedComponent("tokie strips accents if and only if it lower-cases")
        if unknown_id(model) is None:
            raise UnsupportedComponent("tokie needs an unknown token")
        if model["max_input_chars_per_word"] != 100:
            raise UnsupportedComponent("tokie's maximum word length is fixed to 100 characters")

    def __init__(self, parts: TokenizerParts, threads: int):
        core = parts.core
        unigram = _UNIGRAM_MODELS.get(parts.kind)
        self._unigram = unigram(core["model"]) if unigram else None
        if self._unigram is None:
            self.check(parts)
        self.is_exact = self._unigram is not None
        self.inexact_strings: Collection[str] = self._unigram.byte_pieces if self._unigram else ()
        if self._unigram is None:
            plain = (piece for piece in core["model"]["vocab"] if piece.isascii() and piece.islower())
            self._word = next(filter(str.isalpha, plain), None)
        pre_tokenizer = core["pre_tokenizer"]
        if (
            pre_tokenizer
            and pre_tokenizer["type"] == "Metaspace"
            and pre_tokenizer["prepend_scheme"] == "first"
        ):
            # Equivalent for texts without added tokens, and tokie is twice as fast with it.
            core = {**core, "pre_tokenizer": {**pre_tokenizer, "prepend_scheme": "always"}}
        self._json = self._unigram.to_json(core) if self._unigram else json.dumps(core)
        self._load()
        self._memory = memory.private_bytes()

    def _load(self) -> None:
        import tokie

        self._chars = 0
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "tokenizer.json")
            path.write_text(self._json, encoding="utf-8")
            with _loading(self.name):
                self._tokenizer = tokie.Tokenizer.from_json(str(path))

    def _limit_cache(self, pieces: Sequence[str]) -> None:
        self._chars += sum(map(len, pieces))
        if self._memory is None or self._chars <= _CHARS_PER_CACHE:
            return
        if memory.private_bytes() > self._memory + _MAX_GROWTH:
            self._load()

    def encode(self, pieces: Sequence[str]) -> FlatIds:
        self._limit_cache(pieces)
        spelled = list(pieces) if self._unigram is None else self._unigram.spell(pieces)
        ids, lengths = self._tokenizer.encode_batch_flat(spelled, add_special_tokens=False)
        lengths = lengths.astype(np.int64)
        return (ids, lengths) if self._unigram is None else self._unigram.restore(ids, lengths)

    def inexact(self, chars: Sequence[str], exact: Callable[[], Tokenizer]) -> Iterable[bool]:
        """Finds the characters that tokie normalizes or splits differently for WordPiece.

        They depend on Unicode versions, so they are found by encoding them with both libraries.
        """
        if self._word is None:
            return [True] * len(chars)
        # Neither has a token for a word with a character that the vocabulary lacks, so a difference shows only beside a
        # word of the vocabulary.
        word = self._word
        texts = [f"a{char}b {word}{char} {char} {word}{char}{word}" for char in chars]
        return _differing(encode_flat(exact(), texts), self.encode(texts))

    def inexact_positions(self, texts: Sequence[str]) -> dict[int, list[int]]:
        return {}


def _differing(first: FlatIds, second: FlatIds) -> np.ndarray:
    """Determines which texts have different ids in two results.

    >>> _differing((np.array([5, 6, 7]), np.array([1, 2])), (np.array([5, 6, 8]), np.array([1, 2])))
    array([False,  True])
    """
    differ = first[1] != second[1]
    candidates = np.flatnonzero(~differ)  # equally many ids in both, so they can be compared one by one
    starts = [np.cumsum(lengths) - lengths for _, lengths in (first, second)]
    sizes = first[1][candidates]
    pairs = [
        ids[ranges(start[candidates], sizes)] for (ids, _), start in zip((first, second), starts, strict=True)
    ]
    differ[np.repeat(candidates, sizes)[pairs[0] != pairs[1]]] = True
    return differ


CORES: Mapping[str, type[GigatokenCore] | type[TokieCore]] = {"gigatoken": GigatokenCore, "tokie": TokieCore}
