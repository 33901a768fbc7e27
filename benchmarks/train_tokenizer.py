"""Measures `train-tokenizer` beside the trainer in Hugging Face's tokenizers, on the same text in one run.

    .venv/bin/python benchmarks/train_tokenizer.py --input big.txt [--megabytes 150] [--model bpe] [--alone 10000]

Prints the time, CPU seconds and peak memory of both, and checks that their vocabularies and merges are equal. With
`--alone N`, a text of N megabytes follows, for this program only: copies of the input, in each of which a tenth of the
lines has other letters, by a permutation of its own, so that it has ever new words.

`python benchmarks/corpus.py big.txt` writes a large text.
"""

from __future__ import annotations

import argparse
import json
import random
import string
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from measure import Measured, measure, table

LINES_PER_BATCH = 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--input", type=Path, required=True, help="a text, one document per line")
    parser.add_argument("--megabytes", type=int, default=150, help="how much of it both are trained on")
    parser.add_argument("--model", choices=["bpe", "wordpiece"], default="bpe")
    parser.add_argument("--vocab_size", type=int, default=32000)
    parser.add_argument("--alone", type=int, default=0, metavar="N", help="megabytes of the larger text")
    parser.add_argument(
        "--peer", type=Path, help=argparse.SUPPRESS
    )  # the output of the other trainer's process
    args = parser.parse_args()
    if args.peer:
        train_with_tokenizers(args)
        return
    with tempfile.TemporaryDirectory() as folder:
        if args.megabytes:
            compare(args, Path(folder))
        if args.alone:
            corpus = Path(folder, "large.txt")
            write_varied(args.input, corpus, args.alone * 10**6)
            measured, summary = train(args, corpus, Path(folder))
            print(summary, "\n", table(COLUMNS, [figures("train-tokenizer", measured, corpus)]), sep="")


COLUMNS = ["", "seconds", "CPU seconds", "peak memory, MB", "MB/s of CPU"]


def figures(name: str, measured: Measured, corpus: Path) -> list[str]:
    """Returns a row of the table."""
    rate = corpus.stat().st_size / 1e6 / measured.cpu_seconds
    return [
        name,
        f"{measured.seconds:.1f}",
        f"{measured.cpu_seconds:.1f}",
        f"{measured.peak_bytes / 1e6:,.0f}",
        f"{rate:.1f}",
    ]


def compare(args: argparse.Namespace, folder: Path) -> None:
    """Trains both on the same text, and checks that the results are equal."""
    corpus, peer = folder / "corpus.txt", folder / "peer.json"
    with args.input.open(encoding="utf-8") as lines, corpus.open("w", encoding="utf-8") as target:
        size = 0
        for line in lines:
            size += len(line.encode())
            if size > args.megabytes * 10**6:
                break
            target.write(line)
    ours, summary = train(args, corpus, folder)
    options = ["--input", str(corpus), "--model", args.model, "--vocab_size", str(args.vocab_size)]
    theirs = measure([sys.executable, __file__, *options, "--peer", str(peer)], folder / "log")
    print(summary)
    rows = [figures("train-tokenizer", ours, corpus), figures("tokenizers", theirs, corpus)]
    ratios = (theirs.seconds / ours.seconds, theirs.cpu_seconds / ours.cpu_seconds)
    rows.append(
        ["ratio", *(f"{ratio:.1f}×" for ratio in ratios), f"{theirs.peak_bytes / ours.peak_bytes:.1f}×", ""]
    )
    print(table(COLUMNS, rows))
    models = [
        json.loads(path.read_text())["model"] for path in (folder / "tokenizer" / "tokenizer.json", peer)
    ]
    for name in ("vocab", "merges") if args.model == "bpe" else ("vocab",):
        if models[0][name] != models[1][name]:
            raise AssertionError(f"the {name} differ")
    print(f"equal: {len(models[0]['vocab']):,} tokens")


def train(args: argparse.Namespace, corpus: Path, folder: Path) -> tuple[Measured, str]:
    """Runs this program. Returns the measurements, and the last lines of its output."""
    command = [
        sys.executable,
        "-m",
        "beam_pipeline",
        "train-tokenizer",
        "--input",
        str(corpus),
        "--overwrite",
    ]
    command += [
        "--model",
        args.model,
        "--vocab_size",
        str(args.vocab_size),
        "--output",
        str(folder / "tokenizer"),
    ]
    measured = measure(command, folder / "log")
    return measured, "\n".join((folder / "log").read_text().splitlines()[-3:])


def train_with_tokenizers(args: argparse.Namespace) -> None:
    """Trains with Hugging Face's trainer, as its documentation shows, and writes the result."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    if args.model == "bpe":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer = trainers.BpeTrainer(
            vocab_size=args.vocab_size - 3,  # without the special tokens
            min_frequency=2,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
    else:
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        # `train-tokenizer` limits the alphabet, and numbers its characters in their order.
        ours = json.loads((args.peer.parent / "tokenizer" / "tokenizer.json").read_text())["model"]["vocab"]
        alphabet = sorted(token for token in ours if len(token) == 1)
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *("##" + char for char in alphabet)]
        trainer = trainers.WordPieceTrainer(
            vocab_size=args.vocab_size,
            min_frequency=2,
            special_tokens=special,
            initial_alphabet=alphabet,
            limit_alphabet=len(alphabet),
            show_progress=False,
        )
    with args.input.open(encoding="utf-8") as lines:
        tokenizer.train_from_iterator(batches(lines), trainer)
    args.peer.write_text(tokenizer.to_str())


def batches(lines: Iterator[str]) -> Iterator[list[str]]:
    """Yields lines without their ends, in lists."""
    batch: list[str] = []
    for line in lines:
        batch.append(line.rstrip("\n"))
        if len(batch) == LINES_PER_BATCH:
            yield batch
            batch = []
    yield batch


def write_varied(source: Path, target: Path, size: int) -> None:
    """Writes copies of a text, in each of which a tenth of the lines has other letters, up to a size in bytes."""
    rng = random.Random(0)
    written, letters = 0, string.ascii_letters
    with target.open("w", encoding="utf-8") as output:
        while written < size:
            permuted = "".join(rng.sample(string.ascii_lowercase, 26))
            mapping = str.maketrans(letters, permuted + permuted.upper())
            with source.open(encoding="utf-8") as lines:
                for number, line in enumerate(lines):
                    varied = line.translate(mapping) if number % 10 == 0 else line
                    output.write(varied)
                    written += len(varied.encode())
                    if written >= size:
                        return


if __name__ == "__main__":
    main()
