"""Compares writing and reading a checkpoint with Orbax's, in one process each.

    python -m venv /tmp/orbax && /tmp/orbax/bin/pip install jax orbax-checkpoint
    trainer/.venv/bin/python benchmarks/checkpoint_formats.py --folder FOLDER --orbax /tmp/orbax/bin/python

The state has the shapes of a model of 12 layers and AdamW's averages, as random float32, which hardly shrinks. Orbax
has it as JAX's arrays on the CPU, and reads it into such. Both write to the same disk in turns, each time in a new
process, and read what they wrote in another one; the trainer flushes its files to the disk, and verifies checksums.
Prints a Markdown table: CPU seconds (user and system, all threads), the median of the rounds and their range, and the
peak of the memory, beyond what the process had before and, when reading, without the arrays. Imports do not count.
Without --orbax, that is skipped with a message.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["JAX_PLATFORMS"] = "cpu"

LAYERS, STEP = 12, 1
PARTS = ("network", "optimizer/mean", "optimizer/variance")
ACTIONS = ("write", "read")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", required=True, help="a folder that does not exist, on the disk to use")
    parser.add_argument("--gigabytes", type=float, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--orbax", metavar="PYTHON", help="a Python that has orbax-checkpoint and jax")
    parser.add_argument("--only", nargs=2, help=argparse.SUPPRESS)  # a side and an action: a worker's
    args = parser.parse_args()
    if args.only:
        print(json.dumps(measured(*args.only, args.folder, args.gigabytes)))
        return
    from measure import table

    pythons = {"trainer": sys.executable, "Orbax": args.orbax}
    if args.orbax is None:
        print("Orbax: skipped; name its Python with --orbax")
        del pythons["Orbax"]
    results: dict[tuple[str, str], list[dict[str, float]]] = {}
    for _ in range(args.rounds):
        for side, python in pythons.items():
            folder = Path(args.folder, side)
            for action in ACTIONS:
                options = [
                    "--folder",
                    str(folder),
                    "--gigabytes",
                    str(args.gigabytes),
                    "--only",
                    side,
                    action,
                ]
                done = subprocess.run(
                    [python, __file__, *options], capture_output=True, text=True, check=False
                )
                if done.returncode:
                    raise SystemExit(f"{side}, {action}:\n{done.stderr[-2000:]}")
                results.setdefault((side, action), []).append(json.loads(done.stdout.splitlines()[-1]))
            shutil.rmtree(folder)
    Path(args.folder).rmdir()
    lines = []
    for (side, action), figures in results.items():
        seconds = sorted(each["cpu_seconds"] for each in figures)
        lines.append(
            [
                f"{side}, {action}",
                f"{statistics.median(seconds):.2f} ({seconds[0]:.2f} to {seconds[-1]:.2f})",
                f"{statistics.median(each['memory'] for each in figures):.2f}",
                f"{figures[0]['stored']:.2f}" if action == "write" else "",
            ]
        )
    print(table(["", "CPU s", "memory, GB", "on disk, GB"], lines))
    print(
        "\n"
        + "; ".join(
            results["trainer", "write"][0]["releases"]
            + results.get(("Orbax", "write"), [{"releases": []}])[0]["releases"]
        )
    )


def state(gigabytes: float) -> dict[str, np.ndarray]:
    """Returns the state by name; stacks of layers as the trainer has them, and an embedding of a tenth of the model."""
    width = 256 * round((gigabytes * 1e9 / len(PARTS) / 4 / (12 * LAYERS * 1.1)) ** 0.5 / 256)
    shapes = {
        "layers.attention.qkv.weight": (LAYERS, 3 * width, width),
        "layers.attention.output.weight": (LAYERS, width, width),
        "layers.mlp.up.weight": (LAYERS, 4 * width, width),
        "layers.mlp.down.weight": (LAYERS, width, 4 * width),
        "embeddings.tokens.weight": (round(1.2 * LAYERS * width), width),
    }
    random = np.random.default_rng(0)
    return {
        f"{part}/{name}": random.standard_normal(shape, np.float32)
        for part in PARTS
        for name, shape in shapes.items()
    }


def measured(side: str, action: str, folder: str, gigabytes: float) -> dict[str, Any]:
    """Writes or reads the state; returns CPU seconds, GB of memory, GB on the disk, and the releases."""
    values = state(gigabytes)
    size = sum(value.nbytes for value in values.values()) / 1e9
    prepared, releases = {"trainer": trainer, "Orbax": orbax}[side](Path(folder), values)
    if action == "read":
        checked = {name: value[..., :1].copy() for name, value in values.items()}
        values.clear()
    # The peak is the process's: what the preparation needed and freed would hide what follows.
    before, began = memory(), time.process_time()
    read = prepared[action]()
    seconds, peak = time.process_time() - began, peak_since()
    if action == "read":
        for name, expected in checked.items():
            np.testing.assert_array_equal(np.asarray(read[name])[..., :1], expected)
    stored = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file()) / 1e9
    return {
        "cpu_seconds": seconds,
        "memory": peak - before - (size if action == "read" else 0),
        "stored": stored,
        "releases": releases,
    }


def memory() -> float:
    """Resets the peak, and returns the resident memory in GB."""
    Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1e6


def peak_since() -> float:
    """Returns the peak of the resident memory in GB since `memory`."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1e6


Prepared = tuple[dict[str, Callable[[], Any]], list[str]]


def trainer(folder: Path, values: dict[str, np.ndarray]) -> Prepared:
    """Returns the actions of the trainer."""
    import tensorflow as tf

    from tpu_trainer.runs.checkpoint import Checkpoints
    from tpu_trainer.runs.parts import whole_parts

    shapes = {name: value.shape for name, value in values.items()}
    folder.mkdir(parents=True, exist_ok=True)
    checkpoints = Checkpoints(str(folder))

    def read() -> dict[str, np.ndarray]:
        step = checkpoints.latest()
        return {name: array[...] for name, array in checkpoints.read(step, shapes)}

    def write() -> None:
        checkpoints.write(STEP, whole_parts(values), metadata={})

    return {"write": write, "read": read}, [f"tensorflow {tf.__version__}"]


def orbax(folder: Path, values: dict[str, np.ndarray]) -> Prepared:
    """Returns the actions of Orbax."""
    import importlib.metadata

    import jax
    import orbax.checkpoint as ocp

    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    target = {
        name: jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=sharding)
        for name, value in values.items()
    }
    arrays = {name: jax.device_put(values[name], sharding) for name in values}
    checkpointer = ocp.StandardCheckpointer()
    path = folder.absolute() / f"step-{STEP}"

    def write() -> None:
        checkpointer.save(path, arrays)
        checkpointer.wait_until_finished()

    def read() -> dict[str, Any]:
        restored = checkpointer.restore(path, target)
        jax.block_until_ready(restored)
        return restored

    packages = ("jax", "orbax-checkpoint", "tensorstore")
    return {"write": write, "read": read}, [f"{each} {importlib.metadata.version(each)}" for each in packages]


if __name__ == "__main__":
    main()
