"""Chooses beginnings of held-out texts for `generate`, and shows what the model made of them.

python -m demo.held_out choose SPLIT > questions.jsonl
python -m demo.held_out show RUN/summary.json answers.jsonl
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from beam_pipeline.views.decoding import RowDecoder
from beam_pipeline.views.reading import open_split

_QUESTIONS = 3
_GIVEN = 32  # tokens that the model continues
_COMPARED = 64  # tokens of the real text that are shown beside the model's


def choose(split_folder: str) -> Iterator[dict[str, str]]:
    """Takes the first rows, in shuffled order, that begin with enough tokens of one document."""
    split = open_split(split_folder)
    decoder = RowDecoder(split.tokenizer_json())
    special = set(split.manifest["tokenizer"]["all_special_ids"])
    found = 0
    for shard in range(len(split.manifest["shards"])):
        for row in split.rows(shard):
            ids = row.ids[: _GIVEN + _COMPARED].tolist()
            if len(ids) < _GIVEN + _COMPARED or not special.isdisjoint(ids):
                continue
            text, actual = decoder.texts([ids[:_GIVEN], ids[_GIVEN:]])
            yield {"text": text, "actual": actual}
            found += 1
            if found == _QUESTIONS:
                return


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
