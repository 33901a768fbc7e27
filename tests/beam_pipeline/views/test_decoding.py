from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from beam_pipeline.views.decoding import TextDecoder
from tokenmill_reader.console.escaping import visible

SPECIAL = ["[PAD]", "[UNK]", "[MASK]"]


def byte_level(documents: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(documents, trainer)
    return tokenizer


def wordpiece(documents: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=600, special_tokens=SPECIAL, show_progress=False)
    tokenizer.train_from_iterator(documents, trainer)
    return tokenizer


@pytest.fixture(scope="module", params=["unigram", "byte_level", "wordpiece"])
def tokenizer(request, documents: list[str], tokenizer_folder: Path) -> Tokenizer:
    if request.param == "unigram":
        return Tokenizer.from_file(str(tokenizer_folder / "tokenizer.json"))
    return {"byte_level": byte_level, "wordpiece": wordpiece}[request.param](documents)


def test_pieces_cover_all_tokens_and_join_to_the_text_wherever_a_row_begins(tokenizer, documents):
    decoder = TextDecoder(tokenizer.to_str())
    ids = [token for document in documents[:40] for token in tokenizer.encode(document).ids]
    for first in range(0, len(ids) - 37, 37):  # rows begin and end within words and characters
        row = ids[first : first + 37]
        pieces = decoder.pieces(row)
        assert [piece.first for piece in pieces] == [0, *(piece.end for piece in pieces[:-1])]
        assert pieces[-1].end == len(row)
        assert "".join(piece.text for piece in pieces) == decoder.texts([row])[0]


def test_a_character_of_several_tokens_is_one_piece(documents):
    tokenizer = byte_level(["a b c"])
    decoder = TextDecoder(tokenizer.to_str())
    ids = tokenizer.encode("a 🎉!").ids
    emoji = next(piece for piece in decoder.pieces(ids) if "🎉" in piece.text)
    assert emoji.end - emoji.first > 1
    assert decoder.pieces(ids)[-1].text == "!"


def test_special_tokens_and_ids_without_a_token_are_shown(tokenizer_folder: Path):
    decoder = TextDecoder((tokenizer_folder / "tokenizer.json").read_text())
    assert decoder.texts([[0, 4, 2]]) == ["<s><mask></s>"]
    assert decoder.token(4) == "<mask>"
    assert decoder.token(10**6) == "<1000000>"


def test_what_a_terminal_would_obey_is_written_out():
    assert visible("a\x1b[31mb\x00\u202ec\U000e0041") == r"a\x1b[31mb\x00\u202ec\U000e0041"
    assert visible("line\n\ttab") == "line\n\ttab"
    assert visible("line\n\ttab\r", one_line=True) == r"line\n\ttab\x0d"
    assert visible("naïve 漢字 🎉 \u200d") == "naïve 漢字 🎉 \u200d"


@given(st.text())
def test_visible_text_holds_no_control_characters(text):
    assert not any(ord(c) < 32 or 0x7F <= ord(c) < 0xA0 for c in visible(text, one_line=True))


def test_labels_show_spaces_and_newlines_of_byte_level_tokens(documents):
    tokenizer = byte_level(["if a:\n    b b b\n    c"] * 9)
    decoder = TextDecoder(tokenizer.to_str())
    ids = tokenizer.encode("a:\n    b 🎉").ids
    labels = [decoder.label(token) for token in ids]
    assert "".join(labels[:-4]).replace("␣", " ") == "a:\n    b "
    assert labels[-4:] == [tokenizer.id_to_token(token) for token in ids[-4:]]  # parts of a character
    wordpiece_decoder = TextDecoder(wordpiece(["ab ab abc abc"]).to_str())
    assert wordpiece_decoder.label(0) == "[PAD]"
