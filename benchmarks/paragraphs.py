"""Measures `prepare --dedup paragraphs`, beside datatrove's sentence deduplication, on real text with boilerplate.

    .venv/bin/python benchmarks/paragraphs.py --input big.txt --documents 100000 [--peer_python PYTHON]

A third of the documents have one of twenty planted paragraphs, in capitals, with other punctuation or white space. The
script counts all paragraphs again, from the texts alone, and checks that exactly those of more than ten documents are
removed, except for the first. With PYTHON of an environment with `datatrove[processing]`, spacy and orjson, it compares
each line of the first documents with what datatrove leaves of them, for lines that occur twice. `prepare` tokenizes the
documents, too: `--dedup none` shows how much that takes.

`python benchmarks/corpus.py big.txt` writes a large text.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

import pyarrow.parquet as pq
from dedup_runs import (
    COLUMNS,
    PEERS,
    figures,
    parse_arguments,
    prepare,
    ratio_table,
    train_tokenizer,
    write_part,
)
from measure import measure, table
from planted import documents_of, words_of

COPIES, MIN_WORDS = 10, 8
_CHARACTER_WORDS = re.compile("[\u3040-\u30ff\u31c0-\u31ff\u3400-\u9fff\U00020000-\U00032fff]")
_CHANGES = (str.upper, lambda text: text.replace(" ", "  "), lambda text: text.replace(",", ";") + "!", str)


def main() -> None:
    args = parse_arguments(__doc__, peer_documents=20_000)
    with tempfile.TemporaryDirectory() as folder:
        measure_paragraphs(args, Path(folder))


def measure_paragraphs(args: argparse.Namespace, folder: Path) -> None:
    """Prints what is removed and the CPU seconds; with a peer, also its own."""
    corpus = folder / "corpus.jsonl"
    planted = write_corpus(args.input, corpus, args.documents, args.seed)
    train_tokenizer(corpus, folder)
    size = corpus.stat().st_size
    print(f"{args.documents:,} documents, {size / 1e6:.0f} MB, {planted:,} with planted boilerplate\n")
    plain = prepare(corpus, folder, "none")
    rows = [["--dedup none", *figures(plain, size), ""]]
    for dedup in ("exact", "paragraphs", "near", "near+paragraphs"):
        measured = prepare(corpus, folder, dedup, "--dedup", dedup)
        ratio = f"{measured.cpu_seconds / plain.cpu_seconds:.2f}×"
        rows.append([f"--dedup {dedup}", *figures(measured, size), ratio])
    print(table([*COLUMNS, "of none"], rows) + "\n")
    if args.peer_python:  # first: the peak memory of a process is at least that of the one which starts it
        compare(args, folder, corpus)
    check(corpus, folder / "paragraphs", planted)


def write_corpus(text: Path, target: Path, count: int, seed: int) -> int:
    """Writes jsonl of documents, and plants a paragraph in a third of them. Returns the number of these."""
    rng = random.Random(seed)
    documents = documents_of(text, count + 20)
    boilerplate = [next(documents).replace("\n", " ")[:400] for _ in range(20)]
    planted = 0
    with target.open("w", encoding="utf-8") as file:
        for document in documents:
            lines = document.split("\n")
            if rng.random() < 1 / 3:
                # A few are in most documents, as on the web.
                chosen = boilerplate[min(int(rng.expovariate(0.25)), 19)]
                lines.insert(rng.randint(0, len(lines)), rng.choice(_CHANGES)(chosen))
                planted += 1
            file.write(json.dumps({"text": "\n".join(lines)}, ensure_ascii=False) + "\n")
    return planted


def texts_of(corpus: Path) -> list[str]:
    with corpus.open(encoding="utf-8") as lines:
        return [json.loads(line)["text"] for line in lines]


def left_of(corpus: Path, output: Path) -> Iterator[list[str]]:
    """Yields the lines that a run leaves of each document, by its list of removed passages."""
    lines = corpus.read_bytes().splitlines(keepends=True)
    numbers = {place: number for number, place in enumerate(accumulate(map(len, lines), initial=0))}
    texts = texts_of(corpus)
    for path in sorted((output / "removed").glob("*.parquet")):
        for row in pq.read_table(path).to_pylist():
            number, evidence = numbers[row["place"]], json.loads(row["evidence"])
            for start, end in reversed(evidence.get("passages", [[0, len(texts[number])]])):
                texts[number] = texts[number][:start] + texts[number][end:]
    return (text.splitlines() for text in texts)


def check(corpus: Path, output: Path, planted: int) -> None:
    """Checks that what is removed are the paragraphs of more than COPIES documents, except for the first.

    Raises:
        ValueError: If a line is removed that should not be, or not removed that should be.
    """
    documents = [
        [(line, words_of(_CHARACTER_WORDS.sub(r" \g<0> ", line))) for line in text.split("\n")]
        for text in texts_of(corpus)
    ]
    counts = Counter(words for lines in documents for words in {words for _, words in lines})
    repeated = {words for words, count in counts.items() if count > COPIES and len(words) >= MIN_WORDS}
    seen: set[tuple[str, ...]] = set()
    removed = 0
    for number, (lines, left) in enumerate(zip(documents, left_of(corpus, output), strict=True)):
        expected = []
        for line, words in lines:
            if words in repeated and words in seen:
                removed += 1
                continue
            expected.append(line)
            seen.add(words)
        if expected != left:
            raise ValueError(f"document {number}: {left} is left, but should be {expected}")
    print(
        f"removed: {removed:,} of {sum(map(len, documents)):,} lines, all but the first of {len(repeated)} paragraphs "
        f"of more than {COPIES} documents, {planted:,} copies of which were planted; nothing else\n"
    )


def compare(args: argparse.Namespace, folder: Path, corpus: Path) -> None:
    """Compares the lines that both remove from the first documents if one copy suffices, and the CPU seconds."""
    part = write_part(corpus, folder, args.peer_documents)
    peer = [args.peer_python, str(PEERS / "datatrove_sentences.py"), "--input", str(part)]
    theirs = measure([*peer, "--output", str(folder / "peer")], folder / "log")
    options = ["--dedup", "paragraphs", "--paragraph_copies", "1", "--paragraph_min_words", "1"]
    ours = {
        "prepare --dedup paragraphs": prepare(part, folder, "ours", *options),
        "prepare --dedup none": prepare(part, folder, "plain"),
    }
    output, size = folder / "ours", part.stat().st_size
    print(f"{args.peer_documents:,} documents, {size / 1e6:.1f} MB, lines that occur twice:\n")
    print(ratio_table("datatrove, three stages", theirs, ours, size) + "\n")
    texts = texts_of(part)
    peer_left: dict[int, list[str]] = defaultdict(list)
    with next((folder / "peer").glob("*.jsonl")).open(encoding="utf-8") as kept:
        for line in kept:
            record = json.loads(line)
            peer_left[int(record["id"].rpartition("/")[2])] = record["text"].splitlines()
    outcomes: Counter[tuple[bool, bool]] = Counter()
    examples: dict[tuple[bool, bool], list[str]] = defaultdict(list)
    for number, (text, left) in enumerate(zip(texts, left_of(part, output), strict=True)):
        left_by_us, left_by_peer = Counter(left), Counter(peer_left[number])
        for line, count in Counter(text.split("\n")).items():
            for copy in range(count):
                outcome = copy >= left_by_us[line], copy >= left_by_peer[line]
                outcomes[outcome] += 1
                examples[outcome].append(line)
    names = {(True, True): "both", (True, False): "only Tokenmill", (False, True): "only datatrove"}
    rows = [[name, f"{outcomes[outcome]:,}"] for outcome, name in names.items()]
    print(table(["lines removed by", "lines"], [*rows, ["neither", f"{outcomes[False, False]:,}"]]))
    for outcome, name in list(names.items())[1:]:
        for line in examples[outcome][:: max(1, len(examples[outcome]) // 8)][:8]:
            print(f"{name}: {line[:150]}")


if __name__ == "__main__":
    main()
