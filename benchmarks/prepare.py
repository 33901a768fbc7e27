"""Compares `prepare` with its peers, as whole processes, on the same text and tokenizer, in one run.

    .venv/bin/python benchmarks/prepare.py --input big.txt --megabytes 150 [--models bpe unigram wordpiece]
    … --document_bytes 6000      with documents of several lines, as jsonl

Prints a Markdown table for each tokenizer: MB/s, wall time, CPU seconds, the ratio to the first peer's CPU seconds,
peak memory. Use a large, real text; `python benchmarks/corpus.py big.txt` writes about 160 MB from Debian's
documentation packages. Peers that are not installed are skipped with a message. datatrove's reads lines of text only,
Megatron-LM's only jsonl and byte-level BPE.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

from measure import Measured, measure, table

PEERS = Path(__file__).with_name("peers")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--input", required=True, help="a text file, one document per line")
    parser.add_argument(
        "--megabytes", type=int, default=150, help="size of the text; a shorter file is repeated"
    )
    parser.add_argument(
        "--document_bytes",
        type=int,
        help="joins lines to documents of this size; default: a document is a line",
    )
    parser.add_argument("--models", nargs="+", default=["bpe", "unigram", "wordpiece"])
    parser.add_argument("--vocab_size", type=int, default=25000)
    parser.add_argument("--max_length", type=int, default=512)
    parser.add_argument("--runs", type=int, default=1, help="number of runs of prepare; reports the median")
    parser.add_argument("--no_peers", action="store_true", help="measure only prepare")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder, "text.txt")
        size = write_text(Path(args.input), text, args.megabytes * 1_000_000)
        if args.document_bytes:
            text = join_lines(text, args.document_bytes)
        start = measure([sys.executable, "-c", "import apache_beam"], Path(folder, "log"))
        print(
            f"{size / 1e6:.0f} MB of text, {os.cpu_count()} cores; `import apache_beam` takes {start.seconds:.1f} s\n"
        )
        for model in args.models:
            compare(args, Path(folder), text, size, model)


def write_text(source: Path, target: Path, size: int) -> int:
    """Writes up to `size` bytes of whole lines of `source`, repeated if needed, and returns the number of bytes."""
    # Line by line, since the peak memory of a new process includes that of the one that starts it.
    written = 0
    with target.open("wb") as file:
        while True:
            with source.open("rb") as lines:
                for line in lines:
                    whole = line if line.endswith(b"\n") else line + b"\n"
                    if written + len(whole) > size:
                        return written
                    written += file.write(whole)


def join_lines(text: Path, size: int) -> Path:
    """Writes documents of about `size` characters, which are consecutive lines of `text`, beside it as jsonl."""
    target = text.with_suffix(".jsonl")
    with text.open(encoding="utf-8", newline="\n") as lines, target.open("w", encoding="utf-8") as file:
        document: list[str] = []
        characters = 0
        for line in lines:
            document.append(line)
            characters += len(line)
            if characters >= size:
                file.write(json.dumps({"text": "".join(document)[:-1]}, ensure_ascii=False) + "\n")
                document, characters = [], 0
        if document:
            file.write(json.dumps({"text": "".join(document)[:-1]}, ensure_ascii=False) + "\n")
    return target


def compare(args: argparse.Namespace, folder: Path, text: Path, size: int, model: str) -> None:
    """Measures `prepare` and its peers with one kind of tokenizer and prints the table."""
    program = [sys.executable, "-m", "beam_pipeline"]
    log, tokenizer = folder / "log", folder / f"tokenizer-{model}"
    train = ["--input", str(text), "--output", str(tokenizer), "--model", model]
    measure([*program, "train-tokenizer", *train, "--vocab_size", str(args.vocab_size)], log)
    common = ["--input", str(text), "--tokenizer", str(tokenizer), "--max_length", str(args.max_length)]
    results: list[tuple[str, Measured]] = []
    if not args.no_peers:
        quiet = {"TOKENIZERS_PARALLELISM": "false", "TF_CPP_MIN_LOG_LEVEL": "2"}
        for name, command in peers(common, folder, model):
            results.append((name, measure(command, log, quiet)))
            clear(folder)
    # A run on a single line measures the fixed cost of start and end. The first one fills the cache of bytecode.
    single = folder / "single.txt"
    single.write_text("One line.\n")
    for _ in range(2):
        command = [*program, "prepare", *common[2:], "--input", str(single), "--output", str(folder / "out")]
        least = measure(command, log)
        clear(folder)
    own = []
    for _ in range(args.runs):
        own.append(measure([*program, "prepare", *common, "--output", str(folder / "out")], log))
        clear(folder)
    median = sorted(own, key=lambda measured: measured.seconds)[len(own) // 2]
    results.append(("prepare", median))
    first = results[0][1]
    rows = [
        [
            name,
            f"{size / 1e6 / found.seconds:.1f}",
            f"{found.seconds:.1f}",
            f"{found.cpu_seconds:.1f}",
            f"{first.cpu_seconds / found.cpu_seconds:.1f}×",
            f"{found.peak_bytes / 1e9:.2f}",
        ]
        for name, found in results
    ]
    print(f"### {model}\n")
    print(table(["program", "MB/s", "wall s", "CPU s", "ratio of CPU", "peak GB"], rows))
    steady = (size / 1e6) / (median.seconds - least.seconds)
    print(
        f"\nStart and end take {least.seconds:.1f} s of prepare's time; without them it processes {steady:.1f} MB/s.\n",
        flush=True,
    )


def peers(common: list[str], folder: Path, model: str) -> list[tuple[str, list[str]]]:
    """Returns the names and commands of the peers."""
    out, cache = str(folder / "out"), str(folder / "cache")
    processes = ["--processes", str(os.cpu_count())]
    tokens_only = [*common[:4], "--output", out]
    example = [*common, "--output", out, "--cache", cache, *processes]
    found = [("HF example", [sys.executable, str(PEERS / "hf_example.py"), *example])]
    is_jsonl = common[1].endswith(".jsonl")
    if is_jsonl and model == "bpe" and not importlib.util.find_spec("gigatoken"):
        print("gigatoken is not installed: Megatron-LM's fast script is skipped (pip install gigatoken)")
    elif is_jsonl and model == "bpe":
        command = [sys.executable, str(PEERS / "megatron_fast.py"), *tokens_only]
        found.append(("Megatron-LM's fast script (tokens only)", command))
    if not is_jsonl and importlib.util.find_spec("datatrove"):
        command = [sys.executable, str(PEERS / "datatrove_tokenizer.py"), *tokens_only, *processes]
        found.append(("datatrove (tokens only)", command))
    elif not is_jsonl:
        print("datatrove is not installed: skipped (pip install 'datatrove[processing,io]')")
    return found


def clear(folder: Path) -> None:
    for name in ("out", "cache"):
        shutil.rmtree(folder / name, ignore_errors=True)


if __name__ == "__main__":
    main()
