"""The compiled models of the engine `native`, made from tokenizers."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence

import numpy as np

from beam_pipeline.engines.tokenizer_parts import (
    BYTE_UNIGRAM,
    SENTENCEPIECE,
    UNIGRAM,
    WORD_BPE,
    WORDPIECE,
    TokenizerParts,
    characters_before_marks,
)
from beam_pipeline.native.library import rows_library
from beam_pipeline.native.words import Cut, Kind, WordModel
from beam_pipeline.tokenization.byte_level import BYTE_TOKENS, byte_characters
from beam_pipeline.tokenization.tokenizer_json import UnsupportedComponent, product, read_scores, unknown_id

_MARK = "▁"

_MOST_ID = 2**31 - 2

_CONTINUING = b"\xff"  # never in UTF-8; CONTINUING in unigram.c

# In `tokenizers`, the score of an unknown character is this much below the lowest score of the pieces.
_UNKNOWN_PENALTY = 10.0


def make_word_model(parts: TokenizerParts) -> WordModel:
    """Makes the compiled model of a tokenizer.

    Raises:
        UnsupportedComponent: If it is not supported. `check` raises the same.
    """
    check(parts)
    makers = {
        UNIGRAM: _unigram,
        BYTE_UNIGRAM: _unigram,
        WORDPIECE: _wordpiece,
        SENTENCEPIECE: _bpe,
        WORD_BPE: _bpe,
    }
    return makers.get(parts.kind, _byte_level_bpe)(parts, rows_library())


def check(parts: TokenizerParts) -> None:
    """Raises `UnsupportedComponent` for a tokenizer that is not supported, without making its model."""
    model = parts.core["model"]
    if rows_library() is None:
        raise UnsupportedComponent(
            "this installation has no compiled code; install it where there is a C compiler"
        )
    at_marks = parts.kind == SENTENCEPIECE or (parts.kind == WORD_BPE and parts.splitter is None)
    if at_marks and _MARK not in model["vocab"]:
        raise UnsupportedComponent(f"a BPE model without the token {_MARK}")
    number = unknown_id(model)
    if number is None and (model["type"] != "BPE" or model["unk_token"] is not None):
        raise UnsupportedComponent(f"a {parts.kind} model without an unknown token")
    if model["type"] != "Unigram" and max(model["vocab"].values(), default=0) > _MOST_ID:
        raise UnsupportedComponent(f"a token with an id above {_MOST_ID}")
    if parts.kind == UNIGRAM:
        if all(piece != _MARK for piece, _ in model["vocab"]):
            raise UnsupportedComponent(f"a Unigram model without the piece {_MARK}")
        unknown = model["vocab"][number][0]
        if model["byte_fallback"] and _MARK in unknown:
            raise UnsupportedComponent(f"a Unigram model with byte fallback whose unknown token is {unknown}")


def _unigram(parts: TokenizerParts, library: ctypes.CDLL) -> WordModel:
    vocab = parts.core["model"]["vocab"]
    is_byte_level = parts.kind == BYTE_UNIGRAM
    spelling = _bytes_of_alphabet if is_byte_level else _with_spaces
    scores = exact_scores([score for _, score in vocab])
    numbers = {
        piece: number for number, (piece, _) in enumerate(vocab)
    }  # of equal pieces the last one counts
    model = WordModel(
        library,
        Kind.UNIGRAM,
        Cut.UNITS if is_byte_level else Cut.AT_MARKS,
        has_prefix=not is_byte_level and _has_prefix(parts),
        unknown_id=parts.core["model"]["unk_id"],
        unknown_score=min(scores) - _UNKNOWN_PENALTY,
        byte_ids=_byte_ids(numbers, parts.core["model"]["byte_fallback"]),
    )
    spelled = ((spelling(piece), number) for piece, number in numbers.items())
    model.add_pieces({piece: (number, scores[number]) for piece, number in spelled if piece is not None})
    return model


def _wordpiece(parts: TokenizerParts, library: ctypes.CDLL) -> WordModel:
    core = parts.core["model"]
    most = min(core["max_input_chars_per_word"], 2**63 - 1)
    options = {"unknown_id": unknown_id(core), "most_chars": most}
    model = WordModel(library, Kind.WORDPIECE, Cut.SPLITS, **options)
    prefix = core["continuing_subword_prefix"]
    pieces = {token.encode(): (number, 0.0) for token, number in core["vocab"].items()}
    pieces |= {
        _CONTINUING + token[len(prefix) :].encode(): (number, 0.0)
        for token, number in core["vocab"].items()
        if token.startswith(prefix)
    }
    model.add_pieces(pieces)
    model.add_splitter(parts.splitter)
    return model


def _bpe(parts: TokenizerParts, library: ctypes.CDLL) -> WordModel:
    core, splitter = parts.core["model"], parts.splitter
    vocab = core["vocab"]
    at_marks = parts.kind == WORD_BPE and splitter is None
    model = WordModel(
        library,
        Kind.BPE,
        Cut.SPLITS if splitter else Cut.AT_MARKS if at_marks else Cut.BETWEEN_TOKENS,
        has_prefix=at_marks and _has_prefix(parts),
        unknown_id=unknown_id(core),
        fuses_unknown=core["fuse_unk"],
        byte_ids=_byte_ids(vocab, core["byte_fallback"]),
    )
    if splitter:
        spelled = vocab
        model.add_splitter(splitter)
    else:
        spelled = {token.replace(_MARK, " "): number for token, number in vocab.items() if " " not in token}
    before_marks = [] if parts.kind == WORD_BPE else sorted(characters_before_marks(vocab))
    model.add_merges(_symbols(spelled), _merges(core, with_spaces=splitter is not None), before_marks)
    if core["end_of_word_suffix"]:
        model.add_last_symbols(_symbols(_without_suffix(spelled, core["end_of_word_suffix"])))
    if core["ignore_merges"]:
        model.add_pieces({token.encode(): (number, 0.0) for token, number in spelled.items()})
    return model


def _byte_level_bpe(parts: TokenizerParts, library: ctypes.CDLL) -> WordModel:
    core = parts.core["model"]
    options = {"unknown_id": unknown_id(core), "fuses_unknown": core["fuse_unk"]}
    model = WordModel(library, Kind.BYTE_BPE, Cut.SPLITS, **options)
    vocab = core["vocab"]
    model.add_merges(_bytes_among(vocab), _merges(core, with_spaces=True))
    if core["end_of_word_suffix"]:
        model.add_last_symbols(_bytes_among(_without_suffix(vocab, core["end_of_word_suffix"])))
    if core["ignore_merges"]:
        spelled = ((_bytes_of_alphabet(token), number) for token, number in vocab.items())
        model.add_pieces({token: (number, 0.0) for token, number in spelled if token is not None})
    model.add_splitter(parts.splitter)
    return model


def _has_prefix(parts: TokenizerParts) -> bool:
    # "first" is like "always" for texts without added tokens.
    return parts.core["pre_tokenizer"]["prepend_scheme"] != "never"


def _symbols(vocab: Mapping[str, int]) -> dict[int, int]:
    return {ord(token): number for token, number in vocab.items() if len(token) == 1}


def _bytes_among(vocab: Mapping[str, int]) -> dict[int, int]:
    return {byte: vocab[char] for char, byte in _BYTES.items() if char in vocab}


def _without_suffix(vocab: Mapping[str, int], suffix: str) -> dict[str, int]:
    return {token.removesuffix(suffix): number for token, number in vocab.items() if token.endswith(suffix)}


def _merges(core: Mapping, *, with_spaces: bool) -> np.ndarray:
    """Returns the ids of each merge: uint32 [merges, 3].

    Where marks are spaces, no text contains a token with a space.
    """
    vocab = core["vocab"]
    merges = [
        (vocab[left], vocab[right], vocab[product(core, (left, right))])
        for left, right in core["merges"]
        if with_spaces or (" " not in left and " " not in right)
    ]
    return np.array(merges, np.uint32).reshape(-1, 3)


def _with_spaces(piece: str) -> bytes | None:
    """Returns a piece with spaces as marks; None if it cannot be in text, where spaces have become marks."""
    return None if " " in piece else piece.replace(_MARK, " ").encode()


def _bytes_of_alphabet(piece: str) -> bytes | None:
    """Returns the bytes that a piece stands for; None if it has characters beyond the byte alphabet."""
    try:
        return bytes(map(_BYTES.__getitem__, piece))
    except KeyError:
        return None


_BYTES = {char: byte for byte, char in byte_characters().items()}


def _byte_ids(numbers: Mapping[str, int], has_fallback: bool) -> list[int]:
    return [numbers.get(token, -1) if has_fallback else -1 for token in BYTE_TOKENS]


def exact_scores(scores: Sequence[float]) -> list[float]:
    """Returns scores as `tokenizers` reads them."""
    literals = sorted(set(map(repr, scores)))
    read = dict(zip(literals, read_scores(literals), strict=True))
    return [read[repr(score)] for score in scores]
