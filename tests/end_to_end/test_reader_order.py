"""tokenmill-reader gives the same rows at every step as the trainer's input pipeline, for the same seed."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.tokenmill_reader.written import random_rows, write_split
from tokenmill_reader import Dataset, Mixture, Order

STEPS, WINDOW, SEED = 60, 3, 9

# Writes the batches of the trainer's real pipeline: of one host that resumes, and of two from the start.
_TRAINER = f"""
import itertools, json, os, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np, tensorflow as tf
from tpu_trainer.data.batches import RowStream
from tpu_trainer.data.mixture import open_mixture
weights, batch, target = json.loads(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
found = {{}}
for hosts, start in ((1, 41), (2, 0)):
    stream = RowStream(
        data=open_mixture(weights), batch_size=batch, seed={SEED}, window_shards={WINDOW}, hosts=hosts
    )
    for host in range(hosts):
        context = tf.distribute.InputContext(
            num_input_pipelines=hosts, input_pipeline_id=host, num_replicas_in_sync=hosts
        )
        batches = itertools.islice(stream.batches(start)(context).as_numpy_iterator(), {STEPS} - start)
        for step, rows in enumerate(batches, start):
            for name in ("row", "input_ids"):
                found[f"{{hosts}}-{{host}}-{{step}}-{{name}}"] = rows[name]
np.savez(target, **found)
"""


@pytest.mark.parametrize("mixed", [False, True])
def test_every_step_has_the_rows_of_the_trainer(mixed: bool, trainer_python: Path, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    weights = {}
    for number, shards in enumerate((11, 7) if mixed else (11,)):
        sizes = [*random.integers(1, 40, shards).tolist()]
        ids = random_rows(sum(sizes), 8, seed=number)
        folder = write_split(tmp_path / f"{number}" / "train", {"input_ids": ids}, shard_rows=sizes)
        weights[str(folder)] = (1.0, 0.4)[number]
    target = tmp_path / "rows.npz"
    subprocess.run([trainer_python, "-c", _TRAINER, json.dumps(weights), "12", target], check=True)
    data = Mixture.open(weights) if mixed else Dataset.open(folder)
    found = np.load(target)
    for hosts, host, start in ((1, 0, 41), (2, 0, 0), (2, 1, 0)):
        order = Order(data, seed=SEED, batch_size=12, window=WINDOW, host=host, hosts=hosts)
        for step in range(start, STEPS):
            rows = order.rows(step)
            key = f"{hosts}-{host}-{step}"
            assert found[f"{key}-row"].tolist() == rows.tolist()
            np.testing.assert_array_equal(found[f"{key}-input_ids"], data[rows]["input_ids"])
    assert 2 * len(data) < STEPS * 12 or mixed  # several epochs
