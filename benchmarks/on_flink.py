"""Compares `prepare` on a Flink cluster on this machine with the in-process runner: CPU seconds, memory, bytes.

    make .engines/.flink && .venv/bin/python benchmarks/on_flink.py --input text.txt --megabytes 2000

The cluster is that of tests/engines/, with two slots per task manager and a pool of Python workers. Prints a Markdown
table, and fails if the two datasets differ.
"""

from __future__ import annotations

import argparse
import contextlib
import filecmp
import os
import sys
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from measure import measure, table
from prepare import write_text

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from beam_pipeline.support.processes import descendants
from tests.engines.clusters import Flink


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--input", required=True, type=Path, help="a text file, one document per line")
    parser.add_argument(
        "--megabytes", type=int, default=2000, help="size of the text; a shorter file is repeated"
    )
    parser.add_argument("--parallelism", type=int, default=2)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        text, log = folder / "text.txt", folder / "log"
        size = write_text(args.input, text, args.megabytes * 1_000_000)
        program = [sys.executable, "-m", "beam_pipeline"]
        vocabulary = ["--model", "bpe", "--vocab_size", "25000"]
        measure(
            [*program, "train-tokenizer", "--input", str(text), *vocabulary, "--output", f"{name}/tokenizer"],
            log,
        )
        command = [*program, "prepare", "--input", str(text), "--tokenizer", f"{name}/tokenizer"]
        local = measure([*command, "--output", f"{name}/local"], log)
        (folder / "cluster").mkdir()
        flink = Flink(folder / "cluster", stack)
        began = cpu_seconds()
        workers = ["--sdk_worker_parallelism", str(args.parallelism // 2 or 1)]
        launcher = measure(
            [*command, "--output", f"{name}/flink", *flink.options(args.parallelism), *workers], log
        )
        cluster = cpu_seconds() - began
        differences = different_files(folder / "local", folder / "flink")
        if differences:
            raise SystemExit(f"the datasets differ: {differences[:5]}")
        largest = {
            "launcher": launcher.peak_bytes,
            "task manager": max(peak_bytes([server.pid for server in flink.task_managers])),
            "Python worker": max(peak_bytes(descendants(flink.pool.server.pid))),
            "job manager": max(peak_bytes([flink.job_manager.pid])),
            "job server": max(peak_bytes([flink.job_server.pid])),
        }
        rows = [
            ["in this process", f"{local.cpu_seconds:.0f}", "", f"{local.peak_bytes / 1e9:.2f}"],
            [
                "Flink",
                f"{launcher.cpu_seconds:.0f}",
                f"{cluster:.0f}",
                ", ".join(f"{name} {peak / 1e9:.2f}" for name, peak in largest.items()),
            ],
        ]
        print(f"{size / 1e6:.0f} MB of text, parallelism {args.parallelism}; the same bytes\n")
        print(table(["runner", "launcher, CPU s", "cluster, CPU s", "peak memory of a process, GB"], rows))


def peak_bytes(processes: Iterable[int]) -> list[int]:
    """Returns the peak memory of each of these processes, without those that have ended."""
    found = []
    for pid in processes:
        with contextlib.suppress(FileNotFoundError):
            status = Path(f"/proc/{pid}/status").read_text()
            found += [int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM")]
    return found


def cpu_seconds() -> float:
    """Returns the CPU time of all descendants of this process, including those that have ended and were waited for."""
    ticks = 0
    for pid in descendants(os.getpid()):
        with contextlib.suppress(
            FileNotFoundError
        ):  # it has just ended, and its parent's figures include its own
            statistics = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, statistics[11:15]))  # its own, and its children's
    return ticks / os.sysconf("SC_CLK_TCK")


def different_files(one: Path, other: Path) -> list[str]:
    """Returns the names of the files below two folders that are missing in one of them, or differ."""
    names = {
        str(path.relative_to(folder))
        for folder in (one, other)
        for path in folder.rglob("*")
        if path.is_file()
    }
    _, differing, missing = filecmp.cmpfiles(one, other, sorted(names), shallow=False)
    return [*differing, *missing]


if __name__ == "__main__":
    main()
