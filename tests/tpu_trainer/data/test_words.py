"""The beginnings of words, for each kind of tokenizer."""

from __future__ import annotations

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.data.words import Words

TEXT = "I don't like unbelievable (hand-made) cafés, said [Zoë]... 42 times!\n\nNaïve, isn't it?"
KINDS = ("WordPiece", "ByteLevel", "Metaspace")


def tokenizer_of(kind: str) -> PreTrainedTokenizerFast:
    """A tokenizer of few tokens, so that most words have several."""
    specials = ["<unk>", "<s>"]
    if kind == "WordPiece":
        tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
        tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.NFC(), pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(vocab_size=80, special_tokens=specials, show_progress=False)
    elif kind == "ByteLevel":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=270, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
        )
    else:
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=60, special_tokens=specials, unk_token="<unk>", show_progress=False
        )
    tokenizer.train_from_iterator([TEXT] * 3, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>")


def words_of(tokenizer: PreTrainedTokenizerFast) -> list[str]:
    table = Words.from_tokenizer(tokenizer, len(tokenizer))
    encoding = tokenizer(TEXT, return_offsets_mapping=True)
    words: list[tuple[int, int]] = []
    previous_token = None
    for token, (start, end) in zip(encoding["input_ids"], encoding["offset_mapping"], strict=True):
        if (
            previous_token is not None
            and table.starts_inside_word[token]
            and table.ends_inside_word[previous_token]
        ):
            words[-1] = (words[-1][0], end)
        else:
            words.append((start, end))
        previous_token = token
    return [text for start, end in words if (text := TEXT[start:end].strip())]


@pytest.mark.parametrize("kind", KINDS)
def test_words_of_a_text(kind: str) -> None:
    tokenizer = tokenizer_of(kind)
    assert len(tokenizer(TEXT)["input_ids"]) > 40
    words = words_of(tokenizer)
    for word in (
        "I",
        "like",
        "unbelievable",
        "(",
        "hand",
        "-",
        "made",
        "cafés",
        ",",
        "said",
        "Zoë",
        "42",
        "times",
    ):
        assert word in words
    assert ("don't" in words) == (kind != "WordPiece")  # BERT's pre-tokenizer splits it
    assert {"Naïve", "it"} <= set(words)


def test_kinds_that_tell_nothing() -> None:
    characters = Tokenizer(models.BPE())
    characters.train_from_iterator([TEXT], trainers.BpeTrainer(vocab_size=60, show_progress=False))
    assert Words.from_tokenizer(PreTrainedTokenizerFast(tokenizer_object=characters), 2) is None
    level = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    assert not Words.from_tokenizer(
        PreTrainedTokenizerFast(tokenizer_object=level), 2
    ).starts_inside_word.any()
    assert not np.any(Words.single(3).starts_inside_word)


def test_ids_without_a_token_are_part_of_the_vocabulary(capfd: pytest.CaptureFixture[str]) -> None:
    for model in (models.BPE({"a": 0, "Ġa": 5}, []), models.WordPiece({"a": 0, "##a": 5}, unk_token="a")):
        backend = Tokenizer(model)
        backend.pre_tokenizer = pre_tokenizers.ByteLevel()
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
        capfd.readouterr()  # making it lists the gaps, loading it does not
        vocabulary = Vocabulary.from_tokenizer(tokenizer, "folder", "clm")
        assert vocabulary.size == 6 and vocabulary.words is not None
        assert vocabulary.words.starts_inside_word.shape == (6,)
        assert "holes" not in "".join(capfd.readouterr())
