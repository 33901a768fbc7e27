"""Measures `prepare` on Flink with several numbers of workers, and without Beam, with several numbers of threads.

    make setup-engines-quick
    .venv/bin/python benchmarks/workers.py --input big.jsonl --tokenizer DIR [--megabytes 30 147] [--workers 1 2 4 8]
    … --unit_bytes 4194304       options of prepare

Each number of workers gets a cluster of its own, that of tests/engines/, with two slots for each task manager and a
Python process for each slot. All run on this machine, so with more workers than cores only CPU seconds count. Two sizes
of the text give the cost of the start and of a MB; each counts with the round of the least CPU, since the first run on
a cluster also compiles the JVMs' code. Prints two Markdown tables: where the CPU time of the larger text goes, and what
start, text and memory cost. Fails if the datasets differ.
"""

from __future__ import annotations

import argparse
import contextlib
import filecmp
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from measure import environment_with_bytecode, measure, table
from prepare import write_text

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from beam_pipeline.support.processes import command_line, descendants
from tests.engines.clusters import SLOTS, Flink


@dataclass(frozen=True)
class Run:
    """A finished run. CPU in seconds, memory in bytes."""

    wall: float
    command_cpu: float
    """The command: without Beam the whole run, on Flink the launcher."""
    worker_cpu: float = 0
    jvm_cpu: float = 0
    peaks: tuple[tuple[str, int], ...] = ()
    """The peak memory of the largest process of each kind."""
    workers_peak: int = 0
    """The sum of the peak memory of the Python workers."""

    @property
    def cpu(self) -> float:
        return self.command_cpu + self.worker_cpu + self.jvm_cpu


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--input", required=True, type=Path, help="text with a document per line, or jsonl")
    parser.add_argument("--tokenizer", required=True, help="the tokenizer's folder")
    parser.add_argument(
        "--megabytes", type=int, nargs=2, default=[30, 147], help="sizes; a shorter file is repeated"
    )
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2, 4, 8])
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2], help="cores of a run without Beam")
    parser.add_argument(
        "--processes", type=int, nargs="*", default=[2], help="processes of Beam's local runner"
    )
    parser.add_argument(
        "--rounds", type=int, default=2, help="reports the round with the least CPU for each size"
    )
    args, options = parser.parse_known_args()
    # Servers and workers start with this environment.
    environment = environment_with_bytecode()
    os.environ.clear()
    os.environ.update(environment)
    with tempfile.TemporaryDirectory() as folder:
        texts = [Path(folder, f"{megabytes}{args.input.suffix}") for megabytes in args.megabytes]
        sizes = [
            write_text(args.input, text, megabytes * 1_000_000)
            for text, megabytes in zip(texts, args.megabytes, strict=True)
        ]
        runs = Runs(Path(folder), texts, ["--tokenizer", args.tokenizer, *options])

        def add_local_runs(rounds: int) -> None:
            for threads in args.threads:
                runs.add_without_beam(threads, rounds)
            for processes in args.processes:
                runs.add_processes(processes, rounds)

        # Half of them after the others, since the machine's speed changes.
        add_local_runs(args.rounds - args.rounds // 2)
        for workers in args.workers:
            runs.add_flink(workers, args.rounds)
        add_local_runs(args.rounds // 2)
    print(f"{sizes[0] / 1e6:.0f} and {sizes[1] / 1e6:.0f} MB; load {os.getloadavg()[1]:.1f}\n")
    print(report(runs.results, sizes))


class Runs:
    """Runs `prepare` with each text, and keeps the figures.

    Args:
        folder: Folder for datasets and clusters.
        texts: The files.
        options: Options of all runs.
    """

    def __init__(self, folder: Path, texts: list[Path], options: list[str]):
        self._folder = folder
        self._texts = texts
        self._options = options
        self.results: dict[str, dict[Path, list[Run]]] = {}
        """For each kind of run, the rounds of each text."""

    def add_without_beam(self, threads: int, rounds: int) -> None:
        cores = sorted(os.sched_getaffinity(0))[:threads]
        prefix = ["taskset", "-c", ",".join(map(str, cores))]
        self._add(
            f"without Beam, {counted(threads, 'core')}",
            rounds,
            lambda command: run_here([*prefix, *command], self._folder),
        )

    def add_processes(self, processes: int, rounds: int) -> None:
        mode = ["--direct_running_mode", "multi_processing", "--direct_num_workers", str(processes)]
        self._add(
            f"Beam's local runner, {counted(processes, 'process')}",
            rounds,
            lambda command: run_here([*command, *mode], self._folder),
        )

    def add_flink(self, workers: int, rounds: int) -> None:
        cluster, slots = self._folder / "cluster", min(workers, SLOTS)
        cluster.mkdir()
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, cluster)
            flink = Flink(cluster, stack, task_managers=-(-workers // slots), slots=slots)
            options = [*flink.options(workers), "--sdk_worker_parallelism", str(slots)]
            self._add(
                f"Flink, {counted(workers, 'worker')}",
                rounds,
                lambda command: on_flink(flink, [*command, *options], self._folder),
            )

    def _add(self, name: str, rounds: int, run: Callable[[list[str]], Run]) -> None:
        program = [sys.executable, "-m", "beam_pipeline", "prepare", "--output", f"{self._folder}/out"]
        results = self.results.setdefault(name, {text: [] for text in self._texts})
        for _ in range(rounds):
            for text in self._texts:
                results[text].append(run([*program, "--input", str(text), *self._options]))
                print(name, text.stem, results[text][-1], file=sys.stderr, flush=True)
                check_same(self._folder / "out", text.with_suffix(".expected"))


def report(results: dict[str, dict[Path, list[Run]]], sizes: list[int]) -> str:
    """Formats the tables. The sizes are those of the two texts, in bytes."""
    seconds, costs = [], []
    for name, by_text in results.items():
        small, large = (min(runs, key=lambda run: run.cpu) for runs in by_text.values())
        per_byte = (large.cpu - small.cpu) / (sizes[1] - sizes[0])
        parts = (large.wall, large.command_cpu, large.worker_cpu, large.jvm_cpu, large.cpu)
        rounds = [", ".join(f"{run.cpu:.1f}" for run in runs) for runs in by_text.values()]
        seconds.append([name, *(f"{part:.1f}" if part else "" for part in parts), *rounds])
        costs.append(
            [
                name,
                f"{large.cpu - per_byte * sizes[1]:.1f}",
                f"{per_byte * 1e9:.1f}",
                f"{1e-6 / per_byte:.0f}",
                f"{sizes[1] / 1e6 / large.cpu:.1f}",
                ", ".join(f"{kind} {peak / 1e9:.2f}" for kind, peak in large.peaks),
                f"{large.workers_peak / 1e9:.2f}" if large.workers_peak else "",
            ]
        )
    header = ["run", "wall s", "command, CPU s", "Python workers, CPU s", "JVMs, CPU s", "all, CPU s"]
    header += ["smaller text, rounds", "larger text, rounds"]
    cost_header = ["run", "start, CPU s", "CPU ms per MB", "MB/s per core without start", "MB/s per core"]
    cost_header += ["largest process of each kind, GB", "Python workers together, GB"]
    return f"{table(header, seconds)}\n\n{table(cost_header, costs)}"


def run_here(command: list[str], folder: Path) -> Run:
    done = measure(command, folder / "log")
    return Run(done.seconds, done.cpu_seconds, peaks=(("the process", done.peak_bytes),))


def on_flink(flink: Flink, command: list[str], folder: Path) -> Run:
    """Runs `command`, a run on this cluster."""
    jvms = [server.pid for server in (flink.job_manager, flink.job_server, *flink.task_managers)]
    pool = flink.pool.server.pid
    jvm_before, workers_before = cpu_seconds(jvms), cpu_seconds([pool, *descendants(pool)])
    launcher = measure(command, folder / "log")
    peaks = [peak_bytes([pid]) for pid in running_workers(pool)]
    worker_cpu = cpu_seconds([pool, *descendants(pool)]) - workers_before
    jvm_cpu = cpu_seconds(jvms) - jvm_before
    # Beam would stop them later, and `boot` may then start them again, which is not a part of the run.
    flink.pool.kill_workers()
    largest = {
        "launcher": launcher.peak_bytes,
        "Python worker": max(peaks, default=0),
        "task manager": peak_bytes(server.pid for server in flink.task_managers),
        "job manager": peak_bytes([flink.job_manager.pid]),
        "job server": peak_bytes([flink.job_server.pid]),
    }
    return Run(
        launcher.seconds, launcher.cpu_seconds, worker_cpu, jvm_cpu, tuple(largest.items()), sum(peaks)
    )


def running_workers(pool: int) -> list[int]:
    """Returns the ids of the pool's Python processes that have not ended."""
    return [
        pid for pid in descendants(pool) if "apache_beam.runners.worker.sdk_worker_main" in command_line(pid)
    ]


def peak_bytes(processes: Iterable[int]) -> int:
    """Returns the peak memory of the largest of these processes, without those that have ended."""
    largest = 0
    for pid in processes:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            status = Path(f"/proc/{pid}/status").read_text()
            peaks = [int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM")]
            largest = max(largest, *peaks, 0)
    return largest


def cpu_seconds(processes: Iterable[int]) -> float:
    """Returns the CPU time of these processes, and of their children that have ended and were waited for."""
    ticks = 0
    for pid in processes:
        # If it has just ended, its parent's figures include its own.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            statistics = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, statistics[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def check_same(output: Path, expected: Path) -> None:
    """Compares a dataset with `expected`, the first one of this text, and deletes it."""
    if not expected.exists():
        output.rename(expected)
        return
    names = {
        str(path.relative_to(folder))
        for folder in (output, expected)
        for path in folder.rglob("*")
        if path.is_file()
    }
    _, differing, missing = filecmp.cmpfiles(output, expected, sorted(names), shallow=False)
    if differing or missing:
        raise SystemExit(f"the datasets differ: {[*differing, *missing][:5]}")
    shutil.rmtree(output)


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 'es' if noun.endswith('s') else 's'}"


if __name__ == "__main__":
    main()
