"""Compares decontamination with datatrove's NGramsDecontFilter: CPU time, and the decision about each document.

    python benchmarks/decontamination.py TEXT --datatrove venv/bin/python
    (TEXT has a paragraph per line, e.g. of benchmarks/corpus.py; the venv has datatrove[processing], spacy and xxhash)

Items are parts of paragraphs that share no 13 words, in lower case and without punctuation, with another paragraph.
These paragraphs are not in the corpus. Two of three items are planted in one document each, changed in one of several
ways. No other document has an item: a removal of such a document is an error.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
from measure import table

from beam_pipeline.curation.contamination import Decider, find_matches
from beam_pipeline.curation.ngram_index import NgramIndex, build_index
from beam_pipeline.options.input_options import InputConfig
from beam_pipeline.sources.plan import plan
from beam_pipeline.sources.reading import read_unit

N, MIN_WORDS, SHARE = 13, 8, 0.3


def change_a_number(text: str) -> str:
    """Replaces every number by another one, and appends one, so that there is one."""
    return re.sub(r"\d+", "7301", text)


def replace_words(text: str) -> str:
    """Replaces every tenth word."""
    words = text.split()
    words[9::10] = ["replaced"] * len(words[9::10])
    return " ".join(words)


PLANTED: dict[str, Callable[[str], str]] = {
    "unchanged": str,
    "in capitals": str.upper,
    "other white space": lambda text: text.replace(" ", "\n\t"),
    "other punctuation": lambda text: re.sub(r"[,.;:]", " – ", text),
    "with accents": lambda text: text.replace("e", "é"),
    "other numbers": change_a_number,
    "first 60 % of the words": lambda text: " ".join(text.split()[: int(0.6 * len(text.split()))]),
    "first 15 words of 35": lambda text: " ".join(text.split()[:15]),
    "every tenth word replaced": replace_words,
    "only 10 words": str,
}


def unique_lines(lines: list[str]) -> set[int]:
    """Returns the numbers of the lines without any sequence of N words that another line has."""
    words = [re.findall(r"\w+", line.lower()) for line in lines]
    ngrams = [{tuple(w[i : i + N]) for i in range(len(w) - N + 1)} for w in words]
    counts = Counter(ngram for line in ngrams for ngram in line)
    return {number for number, line in enumerate(ngrams) if all(counts[ngram] == 1 for ngram in line)}


def make_corpus(lines: list[str], seed: int) -> tuple[list[str], list[str], list[str]]:
    """Returns the items, the documents, and the kind of each document: a key of PLANTED, or "none"."""
    rng = random.Random(seed)
    is_source = np.zeros(len(lines), bool)
    is_source[sorted(unique_lines(lines))[::10]] = True
    sources = [line for line, chosen in zip(lines, is_source, strict=True) if chosen]
    documents = [line for line, chosen in zip(lines, is_source, strict=True) if not chosen]
    kinds = ["none"] * len(documents)
    items = []
    names = list(PLANTED)
    for number, source in enumerate(sources):
        kind = names[number % len(names)]
        words = source.split()
        item = " ".join(words[2:12] if kind == "only 10 words" else words[2:37])
        items.append(item)
        if number % 3 == 0 or number * 19 >= len(documents):  # these are in no document
            continue
        document = documents[number * 19].split(" ")
        place = rng.randrange(len(document) + 1)
        changed = PLANTED[kind](item)
        if changed == item and kind != "unchanged" and kind != "only 10 words":
            continue
        documents[number * 19] = " ".join([*document[:place], changed, *document[place:]])
        kinds[number * 19] = kind
    return items, documents, kinds


def search(texts: list[str], index: NgramIndex) -> np.ndarray:
    """Returns the removed documents."""
    parts = []
    for start in range(0, len(texts), 1000):
        matches = find_matches(texts[start : start + 1000], index, with_places=False)
        matches["document"] += start
        parts.append(matches)
    decider = Decider(index, np.empty(0, np.int64), min_share=SHARE)
    return decider.decide(np.concatenate(parts)).removals.documents


def timed(function: Callable, *args: object) -> tuple[float, object]:
    """Returns the CPU seconds, and the result of a second call; the first one builds tables."""
    function(*args)
    began = time.process_time()
    result = function(*args)
    return time.process_time() - began, result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("text", type=Path)
    parser.add_argument(
        "--datatrove", help="a Python with datatrove; without it, only this program is measured"
    )
    parser.add_argument("--documents", type=int, default=1 << 62, help="the most paragraphs to use")
    args = parser.parse_args()
    lines = [line for line in args.text.read_text().splitlines() if len(line.split()) >= 40][: args.documents]
    items, documents, kinds = make_corpus(lines, seed=0)
    size = sum(len(text.encode()) for text in documents) / 1e6
    index = build_index(["items"], [[(item,) for item in items]], n=N, min_words=MIN_WORDS)
    seconds, removed = timed(search, documents, index)
    ours = np.zeros(len(documents), bool)
    ours[removed] = True
    with tempfile.TemporaryDirectory() as folder:
        corpus, benchmark = Path(folder, "corpus.jsonl"), Path(folder, "items.jsonl")
        for path, texts in ((corpus, documents), (benchmark, items)):
            path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        planned = plan(InputConfig(input=(str(corpus),)))

        def read() -> int:
            return sum(
                len(batch.texts) for unit in planned.units for batch in read_unit(unit, planned.config)
            )

        reading, _ = timed(read)
        rows = [
            ["reading jsonl alone", f"{reading:.2f}", f"{size / reading:.0f}"],
            ["search and decisions", f"{seconds:.2f}", f"{size / seconds:.0f}"],
        ]
        theirs = np.zeros(len(documents), bool)
        if args.datatrove:
            script = Path(__file__).with_name("peers") / "datatrove_decontamination.py"
            command = [args.datatrove, str(script), "--input", str(corpus), "--benchmark", str(benchmark)]
            peer = json.loads(
                subprocess.run(command, check=True, capture_output=True).stdout.splitlines()[-1]
            )
            theirs = np.array(peer["removed"])
            rows.append(["datatrove", f"{peer['seconds']:.2f}", f"{size / peer['seconds']:.2f}"])
    print(f"{len(documents):,} documents, {size:.1f} MB; {len(items):,} items, {len(index):,} n-grams\n")
    print(table(["", "CPU seconds", "MB/s of a core"], rows))
    counts = Counter(zip(kinds, ours.tolist(), theirs.tolist(), strict=True))
    print()
    outcomes = [(True, True), (True, False), (False, True), (False, False)]
    decisions = [
        [kind, *(str(counts[(kind, *outcome)]) for outcome in outcomes)] for kind in (*PLANTED, "none")
    ]
    print(table(["planted item", "both remove", "only we", "only datatrove", "neither"], decisions))
    for number in [n for n, kind in enumerate(kinds) if kind == "none" and (ours[n] or theirs[n])][:5]:
        print(f"\nerror (we: {ours[number]}, datatrove: {theirs[number]}): {documents[number][:300]}")


if __name__ == "__main__":
    main()
