"""Measures the memory of processes that write and read a checkpoint together, each its part of the state.

    trainer/.venv/bin/python benchmarks/checkpoint_memory.py --folder FOLDER [--gigabytes 10 --processes 4]

Prints a line for each process: its part, and peak resident memory before and after writing, and after reading all of
its part, in GB. It includes Python and TensorFlow, about 0.6 GB. The state is zeros, without memory of its own until it
is read, so what writing takes is what the process needs besides its copy of the state. Removes what it wrote.
"""

from __future__ import annotations

import argparse
import os
import time
from multiprocessing import get_context
from pathlib import Path
from resource import RUSAGE_SELF, getrusage

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

STEP, LAYERS = 1, 16


def work(folder: str, index: int, count: int, gigabytes: float) -> None:
    """The part of one process."""
    import numpy as np

    from tpu_trainer.runs.channel import Channel
    from tpu_trainer.runs.checkpoint import Checkpoints
    from tpu_trainer.runs.parts import Part

    class Folder(Channel):
        """Messages as files."""

        def __init__(self) -> None:
            self.index, self.count = index, count
            self._messages = 0

        def gather(self, text: str) -> list[str]:
            self._messages += 1
            self._send(text)
            return [self._wait_for(sender) for sender in range(count)] if index == 0 else []

        def from_first(self, text: str) -> str:
            self._messages += 1
            if index == 0:
                self._send(text)
            return self._wait_for(0)

        def _send(self, text: str) -> None:
            path = Path(folder, f"message-{self._messages}-{index}")
            path.with_suffix(".tmp").write_text(text)
            path.with_suffix(".tmp").rename(path)

        def _wait_for(self, sender: int) -> str:
            path = Path(folder, f"message-{self._messages}-{sender}")
            while not path.exists():
                time.sleep(0.01)
            return path.read_text()

    def peak() -> float:
        return getrusage(RUSAGE_SELF).ru_maxrss / 1e6

    # Stacks of layers, whose columns the processes divide: weights, and the two averages of AdamW.
    columns = 4096
    rows = round(gigabytes * 1e9 / (3 * 4 * LAYERS * count * columns))
    shape = (LAYERS, rows, count * columns)
    names = [f"{part}/layers.mlp.up.weight" for part in ("network", "optimizer/mean", "optimizer/variance")]
    parts = {
        name: [Part(shape, (0, 0, index * columns), np.zeros((LAYERS, rows, columns), np.float32))]
        for name in names
    }
    checkpoints = Checkpoints(folder, channel=Folder())
    before = peak()
    start = time.process_time()
    checkpoints.write(STEP, parts, metadata={})
    written, seconds = peak(), time.process_time() - start
    checkpoints.check(STEP)
    own = slice(index * columns, (index + 1) * columns)
    kept = {name: array[:, :, own] for name, array in checkpoints.read(STEP, dict.fromkeys(names, shape))}
    size = sum(value.nbytes for value in kept.values())
    print(
        f"process {index}: {size / 1e9:.2f} of {count * size / 1e9:.2f} GB; peak before {before:.2f}, after writing "
        f"{written:.2f} ({seconds:.1f} CPU s), with its part read {peak():.2f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", required=True, help="a folder that does not exist, on the disk to use")
    parser.add_argument("--gigabytes", type=float, default=10)
    parser.add_argument("--processes", type=int, default=4)
    options = parser.parse_args()
    folder = Path(options.folder)
    folder.mkdir()
    try:
        processes = [
            get_context("spawn").Process(
                target=work, args=(str(folder), index, options.processes, options.gigabytes)
            )
            for index in range(options.processes)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
    finally:
        for path in sorted(folder.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        folder.rmdir()


if __name__ == "__main__":
    main()
