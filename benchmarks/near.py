"""Measures `prepare --dedup near`, beside datatrove's MinHash, on real text with planted near-duplicates, in one run.

    .venv/bin/python benchmarks/near.py --input big.txt --documents 100000 [--peer_python PYTHON]

Prints how many of the planted near-duplicates are removed, after checking that all removed documents are as similar as
recorded, and the CPU seconds of whole processes. With PYTHON of an environment with `datatrove[processing]`, spacy,
orjson and datasketch, it does the same with all stages of datatrove's MinHash, with the same parameters on the first
documents, and compares signatures with datasketch's. `prepare` tokenizes the documents, too: `--dedup none` shows how
much that takes.

`python benchmarks/corpus.py big.txt` writes a large text.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from bisect import bisect_left
from collections import defaultdict
from itertools import accumulate, chain
from pathlib import Path

import numpy as np
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
from measure import Measured, measure, table
from planted import KINDS, SHINGLE, THRESHOLD, Planted, similarity, write_corpus

from beam_pipeline.curation.minhash import Bands, band_hashes, hash_bands, hash_functions
from beam_pipeline.curation.shingles import ShingleSize, shingle_sets

BANDS = {"datatrove's bands": "14x8", "default bands": "18x7"}


def main() -> None:
    args = parse_arguments(__doc__, peer_documents=10_000)
    with tempfile.TemporaryDirectory() as folder:
        measure_near(args, Path(folder))


def measure_near(args: argparse.Namespace, folder: Path) -> None:
    """Prints the recall of planted near-duplicates and, with a peer, the CPU seconds of both."""
    corpus = folder / "corpus.jsonl"
    planted = write_corpus(args.input, corpus, args.documents, args.seed)
    train_tokenizer(corpus, folder)
    size = corpus.stat().st_size
    print(f"{args.documents:,} documents, {size / 1e6:.0f} MB, {len(planted):,} of them planted\n")
    rows = [["--dedup none", *figures(prepare(corpus, folder, "none"), size)]]
    removed: dict[str, dict[int, int]] = {}
    for name, bands in BANDS.items():
        rows.append([f"--dedup near, {name}", *figures(prepare_near(corpus, folder, bands), size)])
        removed[name] = check_removed(corpus, folder / bands)
    print(table(COLUMNS, rows) + "\n")
    print(recall_table(planted, removed) + "\n")
    if args.peer_python:
        compare_signatures(args, folder, corpus)
        compare(args, folder, corpus)


def compare_signatures(args: argparse.Namespace, folder: Path, corpus: Path) -> None:
    """Compares the bands of some documents with those of datasketch's signatures.

    Raises:
        ValueError: If they differ.
    """
    with corpus.open(encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line, _ in zip(lines, range(1000), strict=False)]
    sets, bands = shingle_sets(texts, ShingleSize(SHINGLE)), Bands(18, 7)
    functions = hash_functions(args.seed, bands.bands * bands.rows)
    np.savez(folder / "sets.npz", hashes=sets.hashes, starts=sets.starts, functions=functions)
    files = [str(folder / "sets.npz"), str(folder / "signatures.npy")]
    measure([args.peer_python, str(PEERS / "datasketch_minhash.py"), *files], folder / "log")
    signatures = np.load(folder / "signatures.npy")
    if not np.array_equal(hash_bands(signatures, bands), band_hashes(sets, bands, functions)):
        raise ValueError("the bands differ from those of datasketch's signatures")
    print(f"the bands of {len(texts):,} documents are those of datasketch's signatures\n")


def compare(args: argparse.Namespace, folder: Path, corpus: Path) -> None:
    """Prints the CPU seconds of `prepare` and of datatrove on the first documents."""
    part = write_part(corpus, folder, args.peer_documents)
    size = part.stat().st_size
    bands, rows = BANDS["datatrove's bands"].split("x")
    peer = [
        args.peer_python,
        str(PEERS / "datatrove_minhash.py"),
        "--input",
        str(part),
        "--output",
        str(folder / "peer"),
    ]
    theirs = measure([*peer, "--bands", bands, "--rows", rows, "--shingle", str(SHINGLE)], folder / "log")
    ours = {
        "prepare --dedup near": prepare_near(part, folder, BANDS["datatrove's bands"]),
        "prepare --dedup none": prepare(part, folder, "none"),
    }
    print(f"{args.peer_documents:,} documents, {size / 1e6:.1f} MB:\n")
    print(ratio_table("datatrove, four stages", theirs, ours, size))


def prepare_near(corpus: Path, folder: Path, bands: str) -> Measured:
    """Prepares a corpus without near-duplicates, by these bands, in a folder of that name."""
    options = {"dedup": "near", "near_threshold": THRESHOLD, "near_shingle": SHINGLE, "near_bands": bands}
    flags = [str(part) for name, value in options.items() for part in (f"--{name}", value)]
    return prepare(corpus, folder, bands, *flags)


def check_removed(corpus: Path, output: Path) -> dict[int, int]:
    """Checks each removed document's similarity with the one that it is like, from the texts alone.

    Returns:
        The number of each removed document, and of the one that is kept.

    Raises:
        ValueError: If a similarity is not as recorded, or is below the threshold.
    """
    lines = corpus.read_bytes().splitlines(keepends=True)
    starts = list(accumulate(map(len, lines), initial=0))
    units = map(json.loads, (output / "train" / "units.jsonl").read_text().splitlines()[:-1])
    first = {unit["unit"]: bisect_left(starts, unit["parts"][0][1]) for unit in units}
    kept = {}
    for path in sorted((output / "removed").glob("*.parquet")):
        for row in pq.read_table(path).to_pylist():
            evidence = json.loads(row["evidence"])
            number = bisect_left(starts, row["place"])
            kept_unit, kept_document = evidence["kept"]
            like_unit, like_document = evidence.get("like", evidence["kept"])
            kept[number] = first[kept_unit] + kept_document
            texts = (json.loads(lines[index])["text"] for index in (number, first[like_unit] + like_document))
            exact = similarity(*texts)
            if exact != row["value"] or exact < THRESHOLD:
                raise ValueError(
                    f"document {number} was removed for {row['value']}, but its similarity is {exact}"
                )
    return kept


def recall_table(planted: list[Planted], removed: dict[str, dict[int, int]]) -> str:
    """Formats, for each kind, how many pairs at or above the threshold are in one cluster."""
    above = defaultdict(list)
    for pair in planted:
        if pair.similarity >= THRESHOLD:
            above[pair.kind].append(pair)
    rows = []
    for kind, pairs in [*((kind, above[kind]) for kind in KINDS), ("all", list(chain(*above.values())))]:
        cells = []
        for kept in removed.values():
            together = sum(
                kept.get(pair.copy, pair.copy) == kept.get(pair.original, pair.original) for pair in pairs
            )
            cells.append(f"{together / len(pairs):.4f}" if pairs else "")
        rows.append([kind, f"{len(pairs):,}", *cells])
    return table(["change", f"pairs with J ≥ {THRESHOLD}", *(f"recall, {name}" for name in removed)], rows)


if __name__ == "__main__":
    main()
