"""Processes that train together, found through TF_CONFIG."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tpu_trainer.faults import Fault, run_all
from tests.tpu_trainer.ports import free_ports
from tests.tpu_trainer.small_runs import fit_arguments, learnt, losses_on_one_host, metrics, weights
from tpu_trainer.data.dataset import Split
from tpu_trainer.data.mixture import MixedOrder, open_mixture
from tpu_trainer.devices.cluster import Cluster, cluster_from_environment
from tpu_trainer.runs.checkpoint import Checkpoints
from tpu_trainer.support.errors import ExitStatus, UsageError
from tpu_trainer.training.interruption import AgreedEnd

HOSTS = 2
OPTIONS: dict[str, Any] = {
    "model.config.hidden_size": 16,
    "model.config.num_hidden_layers": 1,
    "model.config.num_attention_heads": 2,
    "model.config.intermediate_size": 24,
    "data.window_shards": 2,
    "train.steps": 14,
    "train.batch_size": 8,
    "train.log_every": 1,
    "train.evaluate_every": 6,
    "train.checkpoint_every": 100,
    "train.deterministic": True,
}


def test_tf_config_gives_the_cluster_or_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert cluster_from_environment() == Cluster(workers=1, index=0)
    cluster = {"worker": ["a:1", "b:1"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 1}}))
    assert cluster_from_environment() == Cluster(workers=2, index=1)
    assert not cluster_from_environment().is_chief
    for text, message in [
        ("two hosts", "TF_CONFIG is 'two hosts': not a cluster"),
        (json.dumps({"cluster": cluster}), "not a cluster .*'task'.*; an example is"),
        (
            json.dumps({"cluster": cluster | {"ps": ["c:1"]}, "task": {"type": "worker", "index": 0}}),
            "all tasks must be of type 'worker'",
        ),
        (
            json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 2}}),
            "task.index 2 is out of range for 2 workers",
        ),
    ]:
        monkeypatch.setenv("TF_CONFIG", text)
        with pytest.raises(UsageError, match=message):
            cluster_from_environment()


def environments(hosts: int = HOSTS) -> list[dict[str, str]]:
    """Returns the TF_CONFIG of each process of a new cluster."""
    workers = [f"127.0.0.1:{port}" for port in free_ports(hosts)]
    return [
        {
            "TF_CONFIG": json.dumps(
                {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}
            )
        }
        for index in range(hosts)
    ]


@given(
    signals=st.lists(st.none() | st.integers(0, 15), min_size=1, max_size=4),
    lag=st.integers(0, AgreedEnd.AHEAD),
)
def test_all_processes_end_after_the_same_step_and_read_only_computed_steps(
    signals: list[int | None], lag: int
) -> None:
    """Each process gets a signal after the step of its number, or none; the device is `lag` steps behind."""
    steps, ends = 30, [AgreedEnd() for _ in signals]

    class Sum:
        def __init__(self, step: int) -> None:
            self.step = step

        def __float__(self) -> float:
            assert self.step + lag <= now
            return float(sum(signal is not None and signal < self.step for signal in signals))

    ended: list[set[int]] = [set() for _ in signals]
    for now in range(steps):
        for process, end in enumerate(ends):
            if end.ends(Sum(now)):
                ended[process].add(now)
    asked = [signal for signal in signals if signal is not None]
    expected = min(asked) + 1 + AgreedEnd.AHEAD if asked else None
    assert [min(found, default=None) for found in ended] == [expected] * len(signals)


def spoil(split: Split, keep: set[int]) -> None:
    """Overwrites all but the first record of every shard that is not in `keep`."""
    for number, shard in enumerate(split.shards):
        if number not in keep:
            data = bytearray(Path(shard.path).read_bytes())
            data[len(data) // 4 :] = bytes(len(data) - len(data) // 4)
            Path(shard.path).write_bytes(data)


@pytest.fixture(scope="module")
def own_datasets(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Makes a copy of the dataset for each host, in which only the host's shards of the first epoch are readable."""
    copies = []
    for host in range(HOSTS):
        copy = tmp_path_factory.mktemp("hosts") / f"host{host}"
        shutil.copytree(dataset, copy)
        train = open_mixture({str(copy / "train"): 1.0})
        order = MixedOrder(train, seed=0, window_shards=2, host=host, hosts=HOSTS)
        kept = {shard for _, shard in order.shards(0)} | {shard for _, shard in order.shards(60)}
        assert 0 < len(kept) < len(train.splits[0].shards)
        spoil(train.splits[0], kept)
        validation = open_mixture({str(copy / "validation"): 1.0}).splits[0]
        spoil(validation, set(range(len(validation.shards))[host::HOSTS]))
        copies.append(copy)
    return copies


@pytest.fixture(scope="module")
def outcomes(
    dataset: Path, own_datasets: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Path, list[list[tuple[int, str]]]]]:
    """Name → the run's folder, and exit statuses and outputs of each host's processes."""
    root = tmp_path_factory.mktemp("cluster")

    def chains(run: str, clusters: list[list[Fault]], datasets: list[Path]) -> list[Any]:
        return [
            [
                (fit_arguments(datasets[host], root / run, OPTIONS), faults[host])
                for faults in clusters
                if host < len(faults)
            ]
            for host in range(HOSTS)
        ]

    def together(*more: Fault) -> list[Fault]:
        return [{"environment": values} | fault for values, fault in zip(environments(), more, strict=True)]

    plans = {
        "own": chains("own", [together({}, {})], own_datasets),
        # A signal to the second host ends both; both continue; then the first host finishes alone.
        "terminated": chains("terminated", [together({}, {"terminate_at": 5}), [{}]], [dataset] * HOSTS),
    }
    results = run_all(root, [chain for plan in plans.values() for chain in plan])
    return {
        name: (root / name, results[HOSTS * number : HOSTS * (number + 1)])
        for number, name in enumerate(plans)
    }


def test_hosts_train_together_each_on_its_own_shards(
    outcomes: dict[str, Any], dataset: Path, own_datasets: list[Path]
) -> None:
    run, hosts = outcomes["own"]
    for host in hosts:
        assert [status for status, _ in host] == [0], host[0][1]
    found = [line["loss"] for line in metrics(run) if "loss" in line]
    np.testing.assert_allclose(found, losses_on_one_host(dataset, OPTIONS, hosts=HOSTS), rtol=1e-5)
    summary = json.loads((run / "summary.json").read_text())
    assert summary["eval"]["rows"] == 67
    # One process writes; the other only prints progress.
    assert Checkpoints(str(run / "checkpoints")).latest() == 14


def test_a_signal_to_one_host_ends_all_after_the_same_step(outcomes: dict[str, Any]) -> None:
    run, (first, second) = outcomes["terminated"]
    assert [status for status, _ in first] == [ExitStatus.INTERRUPTED, 0], first
    assert [status for status, _ in second] == [ExitStatus.INTERRUPTED], second
    last = int(re.search(r"fit: continues after step (\d+)\n", first[1][1])[1])
    # Asked after step 5, or, if the signal was noticed no sooner, after 6; counted in the next step, and read later.
    assert last in (6 + AgreedEnd.AHEAD, 7 + AgreedEnd.AHEAD)
    for _, output in (first[0], second[0]):
        assert re.findall(r"^step (\d+)/14 ", output, re.MULTILINE)[-1] == str(last), output
    assert f"interrupted; the same command continues after step {last}\n" in first[0][1]
    assert "interrupted; the same command on all hosts continues from the first host's last" in second[0][1]
    lines = metrics(run)
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 15))
    # Up to that step, it is the run of two hosts; later rows have the order of one host.
    undisturbed = metrics(outcomes["own"][0])
    assert learnt(lines)[:last] == learnt(undisturbed)[:last]
    assert weights(run).keys() == weights(outcomes["own"][0]).keys()
