"""Measures the peak memory and the CPU time of `prepare` in one process, for several sizes of the text.

    .venv/bin/python benchmarks/memory.py --input big.txt --tokenizer DIR [--megabytes 50 150 300] [options of prepare]
    … --limit_megabytes 2000      (as root) runs it in a control group that gets no more memory, page cache included

Prints a Markdown table of private memory (RssAnon), file pages (RssFile), which the kernel can reclaim, and CPU
seconds. A shorter text is repeated.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from measure import environment_with_bytecode, table
from prepare import write_text

_POLL_SECONDS = 0.05


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--input", required=True, help="a text file, one document per line")
    parser.add_argument("--tokenizer", required=True, help="the tokenizer's folder")
    parser.add_argument("--megabytes", type=int, nargs="+", default=[50, 150, 300])
    parser.add_argument("--limit_megabytes", type=int, help="memory of the control group; default: no limit")
    args, options = parser.parse_known_args()
    rows = []
    for megabytes in args.megabytes:
        with tempfile.TemporaryDirectory() as folder:
            text = Path(folder, "text.txt")
            write_text(Path(args.input), text, megabytes * 1_000_000)
            command = ["--input", str(text), "--tokenizer", args.tokenizer, "--output", f"{folder}/out"]
            command = [sys.executable, "-m", "beam_pipeline", "prepare", *command, *options]
            with memory_limit(args.limit_megabytes) as prefix:
                private, files, seconds = peak([*prefix, *command])
        rows.append([str(megabytes), f"{private / 1e9:.2f}", f"{files / 1e9:.2f}", f"{seconds:.1f}"])
    print(table(["MB of text", "private memory, GB", "file pages, GB", "CPU seconds"], rows))


@contextlib.contextmanager
def memory_limit(megabytes: int | None) -> Iterator[list[str]]:
    """Yields what to put before a command to run it in a control group (version 2 or 1) with this much memory."""
    if megabytes is None:
        yield []
        return
    top, name = Path("/sys/fs/cgroup"), "memory.max"
    if not (top / "cgroup.controllers").exists():
        top, name = top / "memory", "memory.limit_in_bytes"
    group = top / f"benchmark-{os.getpid()}"
    group.mkdir()
    try:
        (group / name).write_text(str(megabytes * 1_000_000))
        yield ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(group / "cgroup.procs")]
    finally:
        group.rmdir()


def peak(command: list[str]) -> tuple[int, int, float]:
    """Runs a command and returns the peaks of its RssAnon and RssFile, in bytes, and its CPU seconds.

    Raises:
        subprocess.CalledProcessError: If the command fails.
    """
    peaks = {"RssAnon": 0, "RssFile": 0}
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment_with_bytecode()
    )
    while True:
        ended, status, usage = os.wait4(process.pid, os.WNOHANG)
        if ended:
            process.returncode = os.waitstatus_to_exitcode(status)
            break
        with contextlib.suppress(FileNotFoundError):  # the process has just ended
            for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
                name, _, value = line.partition(":")
                if name in peaks:
                    peaks[name] = max(peaks[name], int(value.split()[0]) << 10)
        time.sleep(_POLL_SECONDS)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return peaks["RssAnon"], peaks["RssFile"], usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
