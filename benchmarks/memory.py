"""Peak memory of `prepare` against the size of the text, in one process.

    .venv/bin/python benchmarks/memory.py --input big.txt --tokenizer DIR [--megabytes 50 150 300] [options of prepare]

Prints a Markdown table: what the process itself held (RssAnon), and the pages of files in its memory (RssFile), which
the kernel takes back when it needs them. The text is repeated if it is shorter.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measure import table
from prepare import write_text

_SECONDS_BETWEEN_LOOKS = 0.05


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--input", required=True, help="a text file, a document per line")
    parser.add_argument("--tokenizer", required=True, help="the tokenizer's folder")
    parser.add_argument("--megabytes", type=int, nargs="+", default=[50, 150, 300])
    args, options = parser.parse_known_args()
    rows = []
    for megabytes in args.megabytes:
        with tempfile.TemporaryDirectory() as folder:
            text = Path(folder, "text.txt")
            write_text(Path(args.input), text, megabytes * 1_000_000)
            command = [
                "--input",
                str(text),
                "--tokenizer",
                args.tokenizer,
                "--output",
                str(Path(folder, "out")),
            ]
            own, files = peak([sys.executable, "-m", "beam_pipeline", "prepare", *command, *options])
        rows.append([str(megabytes), f"{own / 1e9:.2f}", f"{files / 1e9:.2f}"])
    print(table(["MB of text", "own memory, GB", "pages of files, GB"], rows))


def peak(command: list[str]) -> tuple[int, int]:
    """Runs a command to its end; returns the peaks of its RssAnon and its RssFile, in bytes.

    Raises:
      subprocess.CalledProcessError: if it fails.
    """
    peaks = {"RssAnon": 0, "RssFile": 0}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None:
        with contextlib.suppress(FileNotFoundError):  # it has just ended
            for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
                name, _, value = line.partition(":")
                if name in peaks:
                    peaks[name] = max(peaks[name], int(value.split()[0]) << 10)
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return peaks["RssAnon"], peaks["RssFile"]


if __name__ == "__main__":
    main()
