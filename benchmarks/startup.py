"""Measures what each verb of the pipeline costs on a small input, where starting the program is most of the work.

    .venv/bin/python benchmarks/startup.py --input big.txt --tokenizer DIR [--megabytes 10] [--rounds 5]

Prints a Markdown table of CPU seconds (the least of the rounds, since other work on the machine only adds to them) and
peak memory. A shorter text is repeated.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from measure import measure, table
from prepare import write_text


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--input", required=True, help="a text file, one document per line")
    parser.add_argument("--tokenizer", required=True, help="the tokenizer's folder")
    parser.add_argument("--megabytes", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text, out = Path(folder, "text.txt"), f"{folder}/out"
        write_text(Path(args.input), text, args.megabytes * 1_000_000)
        prepare = ["prepare", "--input", str(text), "--tokenizer", args.tokenizer, "--output", out]
        cases = {
            "`import apache_beam`": ["-c", "import apache_beam"],
            "`prepare --help`": ["-m", "beam_pipeline", "prepare", "--help"],
            f"`prepare`, {args.megabytes} MB": ["-m", "beam_pipeline", *prepare, "--overwrite"],
            "`verify`": ["-m", "beam_pipeline", "verify", out],
            "`report`": ["-m", "beam_pipeline", "report", out],
            "`inspect`, a record's documents": [
                "-m",
                "beam_pipeline",
                "inspect",
                out,
                "--record",
                "train:0:0",
            ],
        }
        rows = []
        for name, words in cases.items():
            found = [measure([sys.executable, *words], Path(folder, "log")) for _ in range(args.rounds)]
            cpu, memory = (min(one.cpu_seconds for one in found), max(one.peak_bytes for one in found))
            rows.append([name, f"{cpu:.2f}", f"{memory / 1e6:.0f}"])
    print(table(["command", "CPU seconds", "peak memory, MB"], rows))


if __name__ == "__main__":
    main()
