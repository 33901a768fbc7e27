"""Runs on the hosts of a slice: two network namespaces, each with its own localhost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tpu_trainer.slices import Hosts, two_hosts
from tests.tpu_trainer.small_runs import fit_arguments, learnt, losses_on_one_host, metrics, weights
from tpu_trainer.support.errors import ExitStatus

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


CAUSAL = {name: value for name, value in OPTIONS.items() if not name.startswith("model.")} | {
    "objective": "clm",
    "model.type": "gpt2",
    "model.config.n_embd": 16,
    "model.config.n_layer": 1,
    "model.config.n_head": 2,
}


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with two_hosts(tmp_path_factory.mktemp("hosts")) as found:
        for number in range(2):
            found.serve(number)
        yield found


def losses(run: Path) -> list[float]:
    return [line["loss"] for line in metrics(run) if "loss" in line]


def test_a_gpt2_that_is_killed_on_two_hosts_learns_what_it_learns_on_one(
    hosts: Hosts, dataset: Path, tmp_path: Path
) -> None:
    command = fit_arguments(dataset, tmp_path / "run", CAUSAL)
    assert hosts.fit(command, {"kill_at": 6})[0] == -9
    status, log = hosts.fit(command)
    assert status == 0, log
    assert "2 replica(s)" in log and "continues after step 4" in log
    expected = losses_on_one_host(dataset, CAUSAL, hosts=2)
    np.testing.assert_allclose(losses(tmp_path / "run"), expected, rtol=1e-5)


def test_a_run_on_two_hosts_survives_lost_processes(hosts: Hosts, dataset: Path, tmp_path: Path) -> None:
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"
    status, log = hosts.fit(fit_arguments(dataset, undisturbed, OPTIONS))
    assert status == 0, log
    assert "2 replica(s)" in log
    assert json.loads((undisturbed / "summary.json").read_text())["eval"]["rows"] == 67

    command = fit_arguments(dataset, disturbed, OPTIONS)
    assert hosts.fit(command, {"kill_at": 6})[0] == -9
    # The second host dies in the middle of training.
    status, log = hosts.fit(command, {"lose_host_at": (9, hosts.servers[1])})
    assert status == ExitStatus.INTERRUPTED, log
    assert "continues after step 4" in log
    assert "lost the TPU's host 1 (10.87.0.2:8470): it no longer answers" in log
    hosts.kill(1)
    # It is missing when the run starts.
    status, log = hosts.fit([*command, "--tpu.connect_minutes", "0.01"])
    assert status == ExitStatus.CLOUD, log
    assert "of 2 hosts of the TPU, these did not serve their chips within 0.01 minutes" in log
    assert "1 (10.87.0.2:8470)." in log and "0 (10.87.0.1:8470)" not in log
    hosts.serve(1)
    status, log = hosts.fit(command)
    assert status == 0, log
    assert "continues after step 8" in log

    expected_losses = losses_on_one_host(dataset, OPTIONS, hosts=2)
    np.testing.assert_allclose(losses(undisturbed), expected_losses, rtol=1e-5)
    assert learnt(metrics(disturbed)) == learnt(metrics(undisturbed))
    expected, found = weights(undisturbed), weights(disturbed)
    assert expected.keys() == found.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)
