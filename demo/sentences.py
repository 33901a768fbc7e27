"""`python -m demo.sentences`: sentences from a dataset's held-out rows, each with one word masked, for `fill-mask`.

A masked word is one token, and masking it leaves every other token of its sentence as it was: so the model is asked
exactly what it was trained to answer.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from beam_pipeline.views.reading import Split, open_split

_SENTENCE_ENDS = re.compile(r"(?<=[.!?])\s+|\n+")
_WORDS = range(8, 25)
_MOST_TOKENS = 64
_WINDOW = 12  # words, where the text has too few sentences


@dataclass(frozen=True)
class MaskedSentence:
    """A sentence, the word of it that is masked, and the sentence with the mask token in the word's place."""

    sentence: str
    truth: str
    masked: str


def held_out_texts(split: Split, tokenizer: Tokenizer) -> Iterator[str]:
    """The decoded stretches of documents in the rows of a split's first shard, shortened where rows cut them."""
    special = np.array(split.manifest["tokenizer"]["all_special_ids"], np.int64)
    for row in split.rows(0):
        for stretch in np.split(row.ids, np.flatnonzero(np.isin(row.ids, special))):
            text = tokenizer.decode(stretch.tolist(), skip_special_tokens=True)
            if text:
                yield text


def sentences(text: str) -> list[str]:
    """The whole sentences of a stretch of text that are neither very short nor very long."""
    found = [" ".join(part.split()) for part in _SENTENCE_ENDS.split(text)]
    return [
        sentence
        for sentence in found
        if sentence[:1].isupper() and sentence[-1:] in ".!?" and len(sentence.split()) in _WORDS
    ]


def windows(text: str) -> list[str]:
    """Stretches of a dozen words, for text that has no sentences as we know them."""
    words = text.split()
    return [" ".join(words[i : i + _WINDOW]) for i in range(0, len(words) - _WINDOW + 1, _WINDOW)]


def mask_one(sentence: str, tokenizer: Tokenizer, mask: str) -> MaskedSentence | None:
    """Masks a word of the sentence, chosen by a hash of the sentence; None where no word can be.

    Args:
      sentence: plain text.
      tokenizer: the dataset's.
      mask: its mask token.
    """
    encoding = tokenizer.encode(sentence, add_special_tokens=False)
    mask_id = tokenizer.token_to_id(mask)
    if len(encoding.ids) > _MOST_TOKENS or mask_id in encoding.ids:
        return None
    masked = []
    for place, (first, end) in enumerate(encoding.offsets):
        word = sentence[first:end].lstrip()
        start = end - len(word)
        if len(word) < 2 or not word.isalpha() or _inside_word(sentence, start, end):
            continue
        wanted = [*encoding.ids[:place], mask_id, *encoding.ids[place + 1 :]]
        for begin in (start, first):  # the space before a word may be a part of its token
            text = sentence[:begin] + mask + sentence[end:]
            if tokenizer.encode(text, add_special_tokens=False).ids == wanted:
                masked.append(MaskedSentence(sentence, word, text))
                break
    return masked[int(_hash(sentence), 16) % len(masked)] if masked else None


def _inside_word(sentence: str, start: int, end: int) -> bool:
    return sentence[start - 1 : start].isalnum() or sentence[end : end + 1].isalnum()


def choose(texts: list[str], tokenizer: Tokenizer, mask: str, count: int) -> list[MaskedSentence]:
    """Up to `count` masked sentences, by the order of their hashes: the same for the same texts in any order."""
    chosen: dict[str, MaskedSentence] = {}
    for cut in (sentences, windows):
        candidates = {part for text in texts for part in cut(text)}
        for candidate in sorted(candidates, key=_hash):
            if len(chosen) == count:
                return list(chosen.values())
            found = mask_one(candidate, tokenizer, mask)
            if found is not None:
                chosen[candidate] = found
    return list(chosen.values())


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def main() -> None:
    """Writes `sentences.jsonl`, for reading the answers, and `masked.txt`, a text a line for `fill-mask`."""
    parser = argparse.ArgumentParser(prog="python -m demo.sentences", description="Masks held-out sentences.")
    parser.add_argument("--split", type=Path, required=True, help="folder of the held-out split")
    parser.add_argument("--count", type=int, default=5, help="sentences to mask (default: 5)")
    parser.add_argument("--output", type=Path, required=True, help="folder to write")
    args = parser.parse_args()
    split = open_split(str(args.split))
    tokenizer = Tokenizer.from_str(split.tokenizer_json())
    mask = tokenizer.id_to_token(split.manifest["tokenizer"]["special_token_ids"]["mask"])
    texts = list(held_out_texts(split, tokenizer))
    chosen = choose(texts, tokenizer, mask, args.count)
    args.output.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(asdict(item), ensure_ascii=False) + "\n" for item in chosen)
    (args.output / "sentences.jsonl").write_text(lines, encoding="utf-8")
    (args.output / "masked.txt").write_text("".join(item.masked + "\n" for item in chosen), encoding="utf-8")
    print(f"{len(chosen)} sentences: {args.output}")


if __name__ == "__main__":
    main()
