"""Measures what importing tokenmill-reader, opening a large dataset, and reading its first row take.

    .venv/bin/python benchmarks/opening.py --shards 200000 [--dataset OUT/train]

Writes a manifest and empty shards of 5 MB each (sparse files: 1 TB of them take a few megabytes), and opens them in a
new process, several times. Prints the fewest CPU seconds and the peak memory. With --dataset, also those until a row of
this dataset is read, with its offsets and without.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measure import environment_with_bytecode

_BYTES, _RECORDS = 5_000_000, 5000
_OPEN = """
import pathlib, re, sys, time
from tokenmill_reader import Dataset
imported = time.process_time()
dataset = Dataset.open(sys.argv[1])
peak = re.search(r"VmHWM:\\s+(\\d+)", pathlib.Path("/proc/self/status").read_text())[1]  # rusage's is the parent's
print(imported, time.process_time() - imported, peak, len(dataset))
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shards", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dataset", type=Path, help="a split whose middle row is read; use large shards")
    options = parser.parse_args()
    if options.dataset:
        print_first_row(options.dataset, options.rounds)
    with tempfile.TemporaryDirectory() as folder:
        size = write_dataset(Path(folder, "train"), options.shards)
        lines = [
            subprocess.run(
                [sys.executable, "-c", _OPEN, f"{folder}/train"],
                capture_output=True,
                text=True,
                check=True,
                env=environment_with_bytecode(),
            ).stdout.split()
            for _ in range(options.rounds)
        ]
    start, opened, peak = (min(float(line[column]) for line in lines) for column in range(3))
    print(
        f"{options.shards} shards, {int(lines[0][3])} rows, a manifest of {size / 1e6:.0f} MB: {start:.2f} s of CPU to "
        f"start Python and import, {opened:.2f} s to open, {peak * 1024 / 1e6:.0f} MB at most"
    )


def print_first_row(dataset: Path, rounds: int) -> None:
    """Prints the CPU time of the first row of a dataset, with offsets and without."""
    from tokenmill_reader import Dataset

    with tempfile.TemporaryDirectory() as folder:
        for path in (path for path in dataset.iterdir() if path.is_file()):
            Path(folder, path.name).symlink_to(path.absolute())
        for place, kind in ((dataset, "with"), (Path(folder), "without")):
            spent = []
            for _ in range(rounds):
                opened = Dataset.open(place)
                began = time.process_time()
                _ = opened[len(opened) // 2]
                spent.append(time.process_time() - began)
            print(f"first row {kind} offsets: {min(spent) * 1e3:.2f} ms of CPU; {opened}")


def write_dataset(folder: Path, count: int) -> int:
    """Writes a split, and returns the size of its manifest."""
    folder.mkdir()
    lines = []
    for number in range(count):
        name = f"train-{number:05d}-{_RECORDS}.tfrecord"
        with (folder / name).open("wb") as file:
            file.truncate(_BYTES)
        shard = {"name": name, "records": _RECORDS, "bytes": _BYTES, "rows_checksum": f"{number:016x}"}
        shard |= {"crc32c": f"{number:08x}", "offsets_crc32c": f"{number:08x}"}
        lines.append("    " + json.dumps(shard, sort_keys=True))
    keys = {
        "features": ["attention_mask", "input_ids"],
        "fingerprint": "0" * 64,
        "format": "tokenmill-dataset",
        "max_length": 512,
        "num_records": count * _RECORDS,
        "split": "train",
        "splits": ["train"],
        "tokenizer": {"path": "../tokenizer", "sha256": "0" * 64, "vocab_size": 50257},
        "version": 3,
    }
    texts = {key: json.dumps(value) for key, value in keys.items()}
    texts["shards"] = "[\n" + ",\n".join(lines) + "\n  ]"

    def manifest() -> bytes:
        return ("{\n" + ",\n".join(f'  "{key}": {texts[key]}' for key in sorted(texts)) + "\n}\n").encode()

    texts["checksum"] = f'"{hashlib.sha256(manifest()).hexdigest()}"'
    return (folder / "manifest.json").write_bytes(manifest())


if __name__ == "__main__":
    main()
