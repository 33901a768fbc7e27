"""Measures the peak memory of `prepare` in one process, for several sizes of the text.

    .venv/bin/python benchmarks/memory.py --input big.txt --tokenizer DIR [--megabytes 50 150 300] [options of prepare]

Prints a Markdown table of private memory (RssAnon) and file pages (RssFile), which the kernel can reclaim. A shorter
text is repeated.
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

_POLL_SECONDS = 0.05


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--input", required=True, help="a text file, one document per line")
    parser.add_argument("--tokenizer", required=True, help="the tokenizer's folder")
    parser.add_argument("--megabytes", type=int, nargs="+", default=[50, 150, 300])
    args, options = parser.parse_known_args()
    rows = []
    for megabytes in args.megabytes:
        with tempfile.TemporaryDirectory() as folder:
            text = Path(folder, "text.txt")
            write_text(Path(args.input), text, megabytes * 1_000_000)
            command = ["--input", str(text), "--tokenizer", args.tokenizer, "--output", f"{folder}/out"]
            private, files = peak([sys.executable, "-m", "beam_pipeline", "prepare", *command, *options])
        rows.append([str(megabytes), f"{private / 1e9:.2f}", f"{files / 1e9:.2f}"])
    print(table(["MB of text", "private memory, GB", "file pages, GB"], rows))


def peak(command: list[str]) -> tuple[int, int]:
    """Runs a command and returns the peaks of its RssAnon and RssFile, in bytes.

    Raises:
        subprocess.CalledProcessError: If the command fails.
    """
    peaks = {"RssAnon": 0, "RssFile": 0}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None:
        with contextlib.suppress(FileNotFoundError):  # the process has just ended
            for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
                name, _, value = line.partition(":")
                if name in peaks:
                    peaks[name] = max(peaks[name], int(value.split()[0]) << 10)
        time.sleep(_POLL_SECONDS)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return peaks["RssAnon"], peaks["RssFile"]


if __name__ == "__main__":
    main()
