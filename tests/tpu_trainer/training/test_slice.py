"""A run on the hosts of a slice: two network namespaces, in which localhost is another host for each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tpu_trainer.slices import Hosts, two_hosts
from tests.tpu_trainer.small_runs import fit_arguments, learnt, metrics, weights
from tpu_trainer.errors import ExitStatus

OPTIONS: dict[str, Any] = {
    "model.config.hidden_size": 16,
    "model.config.num_hidden_layers": 1,
    "model.config.num_attention_heads": 2,
    "model.config.intermediate_size": 24,
    "data.window_shards": 2,
    "train.steps": 12,
    "train.batch_size": 8,
    "train.log_every": 1,
    "train.evaluate_every": 6,
    "train.checkpoint_every": 4,
    "train.tensorboard": False,
}


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    with two_hosts() as found:
        yield found


def test_a_run_on_two_hosts_survives_what_befalls_its_processes(
    hosts: Hosts, dataset: Path, tmp_path: Path
) -> None:
    for number in range(2):
        hosts.serve(number)
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"
    status, log = hosts.fit(fit_arguments(dataset, undisturbed, OPTIONS))
    assert status == 0, log
    assert "2 replica(s)" in log
    assert json.loads((undisturbed / "summary.json").read_text())["eval"]["rows"] == 67

    command = fit_arguments(dataset, disturbed, OPTIONS)
    assert hosts.fit(command, {"kill_at": 6})[0] == -9
    # The second host dies in the middle of training.
    status, log = hosts.fit(command, {"lose_host_at": (9, hosts.servers[1].pid)})
    assert status == ExitStatus.INTERRUPTED, log
    assert "continues after step 4" in log
    assert "lost the TPU's host 1 (10.87.0.2:8470): it no longer answers" in log
    hosts.kill(1)
    # It is not there when the run starts.
    status, log = hosts.fit([*command, "--tpu.connect_minutes", "0.01"])
    assert status == ExitStatus.CLOUD, log
    assert "of 2 hosts of the TPU, these did not serve their chips within 0.01 minutes" in log
    assert "1 (10.87.0.2:8470)." in log and "0 (10.87.0.1:8470)" not in log
    hosts.serve(1)
    status, log = hosts.fit(command)
    assert status == 0, log
    assert "continues after step 8" in log

    assert learnt(metrics(disturbed)) == learnt(metrics(undisturbed))
    expected, found = weights(undisturbed), weights(disturbed)
    assert expected.keys() == found.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)
