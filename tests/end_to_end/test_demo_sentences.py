"""The demo's questions: held-out sentences in which a mask stands for exactly one token, a whole word."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from beam_pipeline.views.reading import open_split
from demo.sentences import choose, held_out_texts, mask_one, sentences


@pytest.fixture(scope="module")
def tokenizer(generated_dataset: Path) -> Tokenizer:
    return Tokenizer.from_file(str(generated_dataset / "tokenizer" / "tokenizer.json"))


@pytest.fixture(scope="module")
def texts(generated_dataset: Path, tokenizer: Tokenizer) -> list[str]:
    return list(held_out_texts(open_split(str(generated_dataset / "train")), tokenizer))


def test_texts_are_the_documents_that_rows_hold(texts: list[str], generated: Path) -> None:
    whole = {
        " ".join(line.split()) for line in (generated / "lines.txt").read_text(encoding="utf-8").split("\n")
    }
    records = (json.loads(line) for line in (generated / "records.jsonl").read_text().splitlines() if line)
    whole |= {" ".join(record["text"].split()) for record in records}
    assert len(whole & {" ".join(text.split()) for text in texts}) > 50
    assert not any("</s><s>" in text for text in texts)


def test_a_mask_stands_for_one_token_that_is_a_whole_word(texts: list[str], tokenizer: Tokenizer) -> None:
    chosen = choose(texts, tokenizer, "<mask>", 40)
    assert len(chosen) == 40
    mask = tokenizer.token_to_id("<mask>")
    for item in chosen:
        plain = tokenizer.encode(item.sentence, add_special_tokens=False).ids
        masked = tokenizer.encode(item.masked, add_special_tokens=False).ids
        place = masked.index(mask)
        assert masked == [*plain[:place], mask, *plain[place + 1 :]]
        assert item.masked.replace("<mask>", item.truth) == item.sentence
        assert tokenizer.id_to_token(plain[place]).strip("▁") == item.truth
        assert item.truth in item.sentence.replace(".", " ").split()


def test_the_choice_depends_on_the_texts_alone(texts: list[str], tokenizer: Tokenizer) -> None:
    shuffled = texts * 2
    random.Random(1).shuffle(shuffled)
    assert choose(shuffled, tokenizer, "<mask>", 5) == choose(texts, tokenizer, "<mask>", 5)


def test_text_without_sentences_is_cut_into_windows(texts: list[str], tokenizer: Tokenizer) -> None:
    flat = [text.lower().replace(".", "") for text in texts]
    chosen = choose(flat, tokenizer, "<mask>", 5)
    assert len(chosen) == 5
    assert all(len(item.sentence.split()) == 12 for item in chosen)


@pytest.mark.parametrize("text", ["12 34 56 78 90", "a <mask> is in the text already", "word " * 200])
def test_some_texts_cannot_be_asked_about(text: str, tokenizer: Tokenizer) -> None:
    assert mask_one(text, tokenizer, "<mask>") is None


def test_sentences_are_whole() -> None:
    text = "cut off here. This is a sentence of just eight words. Too short. And this one is cut off at the"
    assert sentences(text) == ["This is a sentence of just eight words."]
