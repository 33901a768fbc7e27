"""Chooses beginnings of held-out texts for `generate`, and shows what the model made of them.

python -m demo.held_out choose SPLIT > questions.jsonl
python -m demo.held_out show RUN/summary.json answers.jsonl
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from beam_pipeline.views.decoding import TextDecoder
from beam_pipeline.views.reading import open_split

_QUESTIONS = 3
# Tokens that the model continues, and tokens of the real text that are shown beside its own. The shorter ones are for
# texts of short documents.
_LENGTHS = ((32, 64), (16, 32), (8, 8), (4, 4))


def choose(split_folder: str) -> Iterator[dict[str, str]]:
    """Takes the first rows, in shuffled order, that have enough successive tokens of one document."""
    split = open_split(split_folder)
    decoder = TextDecoder(split.tokenizer_json())
    special = split.manifest["tokenizer"]["all_special_ids"]
    chosen: set[tuple[int, int]] = set()
    for given, compared in _LENGTHS:
        for shard in range(len(split.manifest["shards"])):
            for number, row in enumerate(split.rows(shard)):
                ids = _longest_stretch(row.ids, special)[: given + compared].tolist()
                if len(ids) < given + compared or (shard, number) in chosen:
                    continue
                chosen.add((shard, number))
                text, actual = decoder.texts([ids[:given], ids[given:]])
                yield {"text": text, "actual": actual}
                if len(chosen) == _QUESTIONS:
                    return


def _longest_stretch(ids: np.ndarray, special: Sequence[int]) -> np.ndarray:
    """Returns the first of the longest stretches of `ids` without special tokens."""
    stretches = np.split(ids, np.flatnonzero(np.isin(ids, special)))
    return max((each[np.isin(each, special, invert=True)] for each in stretches), key=len)


def show(summary: dict, answers: list[dict[str, str]]) -> Iterator[str]:
    """Yields the lines to print: the figures of the run, then each text with both continuations."""
    for answer in answers:
        yield "\n── held-out text " + "─" * 60
        yield _indented(answer["text"])
        yield "── the model continues " + "─" * 54
        yield _indented(answer["continuation"])
        yield "── the author continues " + "─" * 53
        yield _indented(answer["actual"])
    entropy, held_out = summary["unigram_entropy"], summary["eval"]
    below = entropy - held_out["loss"]
    yield (
        f"\nHeld-out loss {held_out['loss']:.3f} nats per token, {below:.2f} below the {entropy:.3f} of a model that "
        f"knows only token frequencies; {held_out['accuracy']:.0%} of the next tokens predicted exactly."
    )


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.strip("\n").split("\n"))


def main(argv: list[str]) -> None:
    """Runs `choose` or `show`."""
    if argv[0] == "choose":
        for question in choose(argv[1]):
            print(json.dumps(question))
    else:
        answers = [json.loads(line) for line in Path(argv[2]).read_text(encoding="utf-8").splitlines()]
        print("\n".join(show(json.loads(Path(argv[1]).read_text(encoding="utf-8")), answers)))


if __name__ == "__main__":
    main(sys.argv[1:])
