"""What the benchmarks of deduplication have in common: options, runs of `prepare`, and tables beside a peer."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from measure import Measured, measure, table

PEERS = Path(__file__).with_name("peers")
COLUMNS = ["program", "CPU s", "MB per CPU s", "peak GB"]
"""The name, and what `figures` returns."""


def parse_arguments(description: str, *, peer_documents: int) -> argparse.Namespace:
    """Returns the options of the command line; `peer_documents` is a default."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--input", required=True, type=Path, help="a text file, one paragraph per line")
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument(
        "--peer_documents",
        type=int,
        default=peer_documents,
        help="documents of the comparison with the peer",
    )
    parser.add_argument("--peer_python", help="Python with datatrove; default: no peer")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def train_tokenizer(corpus: Path, folder: Path) -> None:
    """Trains the tokenizer of `prepare` in `folder`."""
    train = ["--input", str(corpus), "--output", str(folder / "tokenizer"), "--model", "bpe"]
    train += ["--vocab_size", "8000"]
    measure([*_program("train-tokenizer"), *train], folder / "log")


def prepare(corpus: Path, folder: Path, name: str, *options: str) -> Measured:
    """Prepares a corpus with these options, in `folder`/`name`."""
    common = [
        "--input",
        str(corpus),
        "--tokenizer",
        str(folder / "tokenizer"),
        "--output",
        str(folder / name),
    ]
    common += ["--packing", "none", "--output_format", "parquet", "--overwrite"]
    return measure([*_program("prepare"), *common, *options], folder / "log")


def figures(measured: Measured, size: int) -> list[str]:
    """Returns CPU seconds, MB of the `size` bytes of text in one of them, and peak memory in GB."""
    cpu = measured.cpu_seconds
    return [f"{cpu:.1f}", f"{size / 1e6 / cpu:.1f}", f"{measured.peak_bytes / 1e9:.2f}"]


def write_part(corpus: Path, folder: Path, documents: int) -> Path:
    """Writes the first documents of a corpus to a file in a folder of its own; returns its path."""
    part = folder / "part" / "part.jsonl"
    part.parent.mkdir()
    with corpus.open("rb") as lines:
        part.write_bytes(b"".join(line for line, _ in zip(lines, range(documents), strict=False)))
    return part


def ratio_table(peer: str, theirs: Measured, ours: Mapping[str, Measured], size: int) -> str:
    """Returns a table of CPU seconds for `size` bytes of text: the peer's, and how many times as fast others are."""
    rows = [[peer, *figures(theirs, size), "1.0×"]]
    for name, measured in ours.items():
        rows.append([name, *figures(measured, size), f"{theirs.cpu_seconds / measured.cpu_seconds:.1f}×"])
    return table([*COLUMNS, "ratio of CPU"], rows)


def _program(verb: str) -> list[str]:
    return [sys.executable, "-m", "beam_pipeline", verb]
