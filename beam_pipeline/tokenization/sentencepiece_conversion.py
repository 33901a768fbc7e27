"""Parts of a `tokenizer.json` that encode text as a model of SentencePiece does."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# The types of a model and of its pieces, in SentencePiece's protocol buffer.
_UNIGRAM, _BPE = 1, 2
_CONTROL, _USER_DEFINED = 3, 4

_SPACE = "▁"


@dataclass(frozen=True)
class Model:
    """A model of SentencePiece."""

    pieces: Sequence[tuple[str, float]]
    """Each piece and its score, by id."""
    types: Sequence[int]
    """The type of each piece."""
    model_type: int
    unk_id: int
    unk_piece: str
    charsmap: bytes
    """The compiled rules of its normalization. May be empty."""


def read_model(data: bytes) -> Model:
    """Reads a model.

    Raises:
        Exception: An exception of protobuf if the file is not a model.
    """
    from sentencepiece import sentencepiece_model_pb2  # imported late, since hardly any folder needs it

    proto = sentencepiece_model_pb2.ModelProto.FromString(data)
    return Model(
        pieces=[(piece.piece, piece.score) for piece in proto.pieces],
        types=[piece.type for piece in proto.pieces],
        model_type=proto.trainer_spec.model_type,
        unk_id=proto.trainer_spec.unk_id,
        unk_piece=proto.trainer_spec.unk_piece,
        charsmap=proto.normalizer_spec.precompiled_charsmap,
    )


def unigram_or_bpe(
    model: Model, pieces: Sequence[tuple[str, float]], unk_id: int, *, byte_fallback: bool = False
) -> dict:
    """Returns the parts `model` and `added_tokens`.

    Args:
        model: The model.
        pieces: The vocabulary that the tokenizer has, which may differ from the model's: the pieces and their scores.
        unk_id: The id in `pieces` of the unknown token.
        byte_fallback: Whether the tokens of bytes, such as `<0x0A>`, represent unknown characters.

    Raises:
        ValueError: If the model is neither a Unigram nor a BPE model.
    """
    vocab = {piece: number for number, (piece, _) in enumerate(pieces)}
    if model.model_type == _UNIGRAM:
        converted = {
            **{"type": "Unigram", "unk_id": unk_id, "vocab": list(map(list, pieces))},
            "byte_fallback": byte_fallback,
        }
    elif model.model_type == _BPE:
        converted = {
            **{
                "type": "BPE",
                "dropout": None,
                "unk_token": model.unk_piece,
                "continuing_subword_prefix": None,
            },
            **{"end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": byte_fallback},
            **{"ignore_merges": False, "vocab": vocab, "merges": _merges(pieces)},
        }
    else:
        raise ValueError("the model of SentencePiece is neither a Unigram nor a BPE model")
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [
        {"id": vocab[piece], "content": piece, **flags, "special": kind == _CONTROL}
        for (piece, _), kind in zip(model.pieces, model.types, strict=True)
        if kind in (_CONTROL, _USER_DEFINED) and piece in vocab
    ]
    return {"model": converted, "added_tokens": added}


def _merges(pieces: Sequence[tuple[str, float]]) -> list[tuple[str, str]]:
    """Returns the merges that make each piece of two others, in the order of the pieces' scores.

    SentencePiece's BPE models have scores instead of merges.
    """
    ids = {piece: number for number, (piece, _) in enumerate(pieces)}
    ranked = []
    for piece, score in dict(pieces).items():
        splits = [(piece[:place], piece[place:]) for place in range(1, len(piece))]
        known = [split for split in splits if split[0] in ids and split[1] in ids]
        ranked += [
            (score, *split) for split in sorted(known, key=lambda split: (ids[split[0]], ids[split[1]]))
        ]
    ranked.sort(key=lambda merge: (merge[0], len(merge[1]), len(merge[2])), reverse=True)
    return [(first, second) for _, first, second in ranked]


def normalizer(model: Model) -> dict:
    """Returns the normalizer of most models: the model's rules, and runs of spaces as one."""
    strip = {"type": "Strip", "strip_left": False, "strip_right": True}
    return sequence([*charsmap(model), strip, replace_spaces(_SPACE)])


def charsmap(model: Model) -> list[dict]:
    """Returns the normalizer with the model's rules, if it has any."""
    rules = base64.b64encode(model.charsmap).decode()
    return [{"type": "Precompiled", "precompiled_charsmap": rules}] if rules else []


def sequence(normalizers: Sequence[Mapping]) -> dict:
    """Returns a normalizer that applies several."""
    return {"type": "Sequence", "normalizers": list(normalizers)}


def replace(old: str, new: str) -> dict:
    """Returns a normalizer or decoder that replaces a text."""
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


def replace_spaces(new: str) -> dict:
    """Returns a normalizer that replaces two or more spaces."""
    return {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": new}


def metaspace(scheme: str) -> dict:
    """Returns the parts `pre_tokenizer` and `decoder` that mark the beginning of words with `▁`.

    Args:
        scheme: Where `▁` is prepended: to the `first` word, `always` also after added tokens, or `never`.
    """
    part = {"type": "Metaspace", "replacement": _SPACE, "prepend_scheme": scheme, "split": True}
    return {"pre_tokenizer": part, "decoder": part}
