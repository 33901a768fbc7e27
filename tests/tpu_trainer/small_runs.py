"""Command lines and results of small runs."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tpu_trainer.data.batches import RowStream
from tpu_trainer.data.mixture import open_mixture
from tpu_trainer.data.vocabulary import load_vocabulary
from tpu_trainer.devices.tf_executor import replica_step
from tpu_trainer.runs.checkpoint import Checkpoints
from tpu_trainer.training.build import build_task
from tpu_trainer.verbs.command_line import parse


def fit_arguments(dataset: Path, run: Path | str, options: dict[str, Any]) -> list[Any]:
    """Returns a command line of `fit` on `dataset` and the CPU; `options` override."""
    options = {
        "output_dir": run,
        "data.train": dataset / "train",
        "data.validation": dataset / "validation",
        "strategy": "cpu",
    } | options
    return ["fit"] + [item for name, value in options.items() for item in (f"--{name}", value)]


def metrics(run: Path) -> list[dict[str, Any]]:
    """Returns the records of the run's log."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def learnt(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the records without timings."""
    return [
        {k: v for k, v in record.items() if not k.endswith(("_per_second", "_seconds"))} for record in records
    ]


def weights(run: Path) -> dict[str, np.ndarray]:
    """Returns all variables of the newest checkpoint: those of the network and the optimizer, and the running sums."""
    checkpoints = Checkpoints(str(run / "checkpoints"))
    reader = tf.train.load_checkpoint(f"{checkpoints.path(checkpoints.latest())}/state")
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def losses_on_one_host(dataset: Path, options: dict[str, Any], *, hosts: int) -> list[float]:
    """Returns the loss of each step of a run on `hosts` hosts, computed by this process on the rows of all."""
    _, config = parse([str(item) for item in fit_arguments(dataset, "run", options)])
    train = open_mixture({str(dataset / "train"): 1.0})
    task = build_task(
        config,
        vocabulary=load_vocabulary(train.splits[0], config.objective),
        max_length=train.max_length,
        strategy=tf.distribute.get_strategy(),
    )
    rows = RowStream(
        data=train,
        batch_size=config.train.batch_size,
        seed=config.seed,
        window_shards=config.data.window_shards,
        hosts=hosts,
    )
    batches = rows.batches(0)
    streams = [
        iter(batches(tf.distribute.InputContext(hosts, host, num_replicas_in_sync=hosts)))
        for host in range(hosts)
    ]
    step = tf.function(partial(replica_step, task), jit_compile=True)
    losses = []
    for _ in range(config.train.steps):
        parts = [next(stream) for stream in streams]
        step({name: tf.concat([part[name] for part in parts], axis=0) for name in parts[0]})
        losses.append(float(task.running[0] / task.running[2]))
        task.running.assign(tf.zeros_like(task.running))
    return losses
