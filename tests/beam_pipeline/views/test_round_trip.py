"""What a tokenizer keeps of real documents: counts, and a passage that is safe to print."""

from __future__ import annotations

import functools

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from beam_pipeline.views.round_trip import keeps_text, measure
from tests.beam_pipeline.training import train

CODE = "def f(x):\n    return  x\n"


@functools.cache
def tokenizer(model: str, **options: bool) -> str:
    return train(model, lambda: [CODE] * 9, vocab_size=400, **options).tokenizer.to_str()


@pytest.mark.parametrize("model", ["bpe", "unigram"])
def test_byte_level_tokenizers_keep_text_unless_they_fold_it(model: str):
    assert keeps_text(tokenizer(model))
    assert not keeps_text(tokenizer(model, normalize=True))


def test_wordpiece_does_not():
    assert not keeps_text(tokenizer("wordpiece"))


def test_lost_characters_are_counted_by_kind():
    result = measure(tokenizer("wordpiece"), [CODE, "return x", "def 漢"])
    assert result.to_json() == {
        "documents": 3,
        "changed": 2,
        "characters": len(CODE) + 8 + 5,
        "lost": {"line breaks": 2, "other characters": 1, "other white space": 6},
    }
    assert result.describe() == (
        "66.7% of 3 documents in a sample change, and 24.32% of the characters are lost (other white space 16.22%, "
        "line breaks 5.41%, other characters 2.70%)"
    )
    assert result.example == r"'def f(x):\n␣␣␣␣return␣␣x\n' → 'def f ( x ) : return x'"


def test_the_passage_has_the_first_difference_or_white_space():
    kept = measure(tokenizer("bpe"), ["plain", "a" * 90 + "\tb" + "c" * 90, "x\n\ny"])
    assert kept.example == f"'…{'a' * 20}\\tb{'c' * 38}…' → the same"
    assert measure(tokenizer("bpe"), ["plain"]).example == "'plain' → the same"
    lost = measure(tokenizer("wordpiece"), ["x " * 50 + "\n" + "x " * 50])
    before, after = lost.example.split(" → ")
    assert before.startswith(f"'…{'x ' * 10}\\nx x") and after.startswith(f"'…{'x ' * 12}")


def test_the_passage_of_a_hostile_document_is_safe_to_print():
    hostile = "\x1b]0;owned\x07\x1b[2J\u202e\r\n\\n\u00a0</s><mask>"
    shown = measure(tokenizer("bpe"), [hostile]).example
    assert shown == r"'\x1b]0;owned\x07\x1b[2J\u202e\r\n\\n\xa0</s><mask>' → the same"


def test_special_tokens_in_text_are_text():
    text = "a <mask> b </s><s>"
    assert not measure(tokenizer("unigram"), [text]).changed
    assert measure(tokenizer("unigram"), [text], parse_special_tokens=True).changed


def test_only_the_beginning_of_a_long_line_is_measured():
    assert measure(tokenizer("bpe"), ["word " * 4_000_000]).characters == 8192


def test_texts_and_ids_that_the_tokenizer_cannot_handle_are_left_out():
    without_unknown = Tokenizer(models.Unigram([("a", -1.0)], unk_id=None))
    assert measure(without_unknown.to_str(), ["a", "b"]).documents == 1
    assert not keeps_text(without_unknown.to_str())
    growing = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    growing.pre_tokenizer = pre_tokenizers.Whitespace()
    growing.decoder = decoders.Replace("a", "b" * 1000)
    assert measure(growing.to_str(), ["a"]).documents == 0
