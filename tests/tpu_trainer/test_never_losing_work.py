"""Runs that are killed, terminated or out of disk space continue and end like undisturbed runs."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.tpu_trainer.faults import Fault, run_all
from tests.tpu_trainer.small_runs import fit_arguments, learnt, metrics, weights
from tpu_trainer.data.batches import RowStream
from tpu_trainer.data.mixture import open_mixture
from tpu_trainer.runs.checkpoint import Checkpoints
from tpu_trainer.support.errors import ExitStatus

MLM: dict[str, Any] = {
    "model.config.hidden_size": 16,
    "model.config.num_hidden_layers": 1,
    "model.config.num_attention_heads": 2,
    "model.config.intermediate_size": 24,
    "model.config.hidden_dropout_prob": 0.1,
}
CLM: dict[str, Any] = {
    "objective": "clm",
    "model.config.n_embd": 16,
    "model.config.n_layer": 1,
    "model.config.n_head": 2,
}
SMALL: dict[str, Any] = {
    "schedule.warmup_steps": 3,
    "train.steps": 24,
    "train.batch_size": 8,
    "train.log_every": 5,
    "train.evaluate_every": 6,
    "train.checkpoint_every": 7,
    "train.keep_checkpoints": 2,
    "train.deterministic": True,
    "train.accumulation": 2,
    "optimizer.ema": 0.9,
}
Chain = list[tuple[Fault, dict[str, Any]]]
# The fault of each process of a run, and options that differ in that process.
KILLED: Chain = [
    ({"kill_in_write_of": 14}, {}),
    ({"kill_at": 17}, {"train.checkpoint_minutes": 1e-6}),
    ({}, {"profile.steps": "20:21"}),
]
TERMINATED: Chain = [
    ({"signal_while_compiling": signal.SIGINT}, {}),
    ({"signal_while_compiling": signal.SIGTERM}, {}),
    ({"terminate_in_evaluation": 12}, {}),
    ({"terminate_twice_at": 16}, {}),
    ({"terminate_in_evaluation": 24}, {}),
]
KILLED_CLM: Chain = [({"kill_at": 11}, {}), ({"kill_in_write_of": 21}, {}), ({}, {})]
DIVERGING = {"optimizer.learning_rate": 1e30, "train.checkpoint_every": 1}


@pytest.fixture(scope="module")
def small_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path | None]:
    """The mount point of a disk of a megabyte; None if this user cannot mount one."""
    folder = tmp_path_factory.mktemp("small-disk")
    mount_result = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True, check=False
    )
    if mount_result.returncode:
        yield None
        return
    yield folder
    subprocess.run(["umount", folder], check=True)


Outcomes = dict[str, tuple[Path, list[tuple[int, str]]]]
"""Name → the run's folder, and exit status and output of each of its processes."""


def outcomes_of(dataset: Path, root: Path, chains: dict[str, tuple[Path, dict[str, Any], Chain]]) -> Outcomes:
    """Runs chains, each given as the run's folder, the options of all processes, and the processes."""
    plan = [
        [(fit_arguments(dataset, folder, SMALL | model | options), fault) for fault, options in chain]
        for folder, model, chain in chains.values()
    ]
    results = run_all(root, plan)
    assert [path.name for path in (root / "temporary").iterdir()] == []
    return {name: (chains[name][0], result) for name, result in zip(chains, results, strict=True)}


@pytest.fixture(scope="module")
def outcomes(dataset: Path, tmp_path_factory: pytest.TempPathFactory, small_disk: Path | None) -> Outcomes:
    """The outcomes of a masked model."""
    root = tmp_path_factory.mktemp("faults")
    full_run = (small_disk or root) / "full"
    ballast = str(full_run.parent / "ballast")
    full_disk: Chain = [({"refuse_writes_from": 12}, {}), ({}, {})]
    if small_disk:
        full_disk = [({"fill_disk_at": (12, ballast)}, {}), ({"remove_before": ballast}, {})]
    chains = {
        "undisturbed": (root / "undisturbed", MLM, [({}, {})]),
        "killed": (root / "killed", MLM, KILLED),
        "terminated": (root / "terminated", MLM, TERMINATED),
        "full": (full_run, MLM, full_disk),
        "diverged": (root / "diverged", MLM, [({}, DIVERGING)]),
    }
    return outcomes_of(dataset, root, chains)


def statuses(result: list[tuple[int, str]]) -> list[int]:
    return [status for status, _ in result]


def assert_same_weights(run: Path, undisturbed_run: Path) -> None:
    """Bit for bit: the model's, the optimizer's and the log's variables."""
    actual, expected = weights(run), weights(undisturbed_run)
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(actual[name], value, err_msg=name)


def starts(result: list[tuple[int, str]]) -> list[int]:
    """Returns the step after which each process but the first continues."""
    return [int(re.search(r"continues after step (\d+)\n", output)[1]) for _, output in result[1:]]


def assert_ends_like_undisturbed(outcomes: Outcomes) -> None:
    undisturbed_run, result = outcomes["undisturbed"]
    assert statuses(result) == [0], result[0][1]
    run, result = outcomes["killed"]
    assert statuses(result) == [-signal.SIGKILL] * (len(result) - 1) + [0], result[-1][1]
    assert learnt(metrics(run)) == learnt(metrics(undisturbed_run))
    assert [record["step"] for record in metrics(run) if "eval" in record] == [6, 12, 18, 24]
    assert_same_weights(run, undisturbed_run)
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in (run, undisturbed_run)]
    assert summaries[0]["eval"] == summaries[1]["eval"]
    assert summaries[0]["final_loss"] == summaries[1]["final_loss"]


def test_a_killed_run_ends_with_the_same_bits(outcomes: Outcomes) -> None:
    assert_ends_like_undisturbed(outcomes)


def test_a_killed_run_continues_from_its_newest_whole_checkpoint(outcomes: Outcomes) -> None:
    run, result = outcomes["killed"]
    after_half_a_write, by_the_clock = starts(result)
    # Saved at 12, the best evaluation, or 7, for 14's was killed half-way; then by the clock, at least once before step
    # 14, whose save waits for the one before.
    assert after_half_a_write in (7, 12)
    assert after_half_a_write < by_the_clock <= 16
    assert list((run / "tensorboard" / "plugins" / "profile").glob("*/*.xplane.pb"))


@pytest.mark.wide
def test_a_killed_run_of_a_causal_model_ends_with_the_same_bits(dataset: Path, tmp_path: Path) -> None:
    root = tmp_path / "runs"
    chains = {
        "undisturbed": (root / "undisturbed", CLM, [({}, {})]),
        "killed": (root / "killed", CLM, KILLED_CLM),
    }
    outcomes = outcomes_of(dataset, root, chains)
    assert_ends_like_undisturbed(outcomes)
    start_after_step, start_after_half_a_write = starts(outcomes["killed"][1])
    assert start_after_step in (6, 7)
    assert start_after_half_a_write in (14, 18)


def test_sigterm_saves_and_the_second_ends_at_once(outcomes: Outcomes) -> None:
    run, (*compiling, evaluating, training, ending) = outcomes["terminated"]
    result, interrupted = [evaluating, training, ending], ExitStatus.INTERRUPTED
    assert statuses(compiling) == [128 + signal.SIGINT, interrupted]
    for (_, output), name in zip(compiling, ("SIGINT", "SIGTERM"), strict=True):
        assert f"{name}: ending at once; the same command continues after step 0\n" in output
        assert "Traceback" not in output
    assert statuses(result) == [interrupted, 128 + signal.SIGTERM, interrupted]
    for (_, output), step in ((result[0], 12), (result[2], 24)):
        assert f"interrupted; the same command continues after step {step}\n" in output
    # The next process finishes the evaluation of step 12 before the next step.
    assert result[1][1].index("step 12: validation loss") < result[1][1].index("step 15/24")
    assert "SIGTERM again: ending at once" in result[1][1]
    undisturbed_run, _ = outcomes["undisturbed"]
    assert_same_weights(run, undisturbed_run)
    assert learnt(metrics(run)) == learnt(metrics(undisturbed_run))[:-1]  # all but the last evaluation
    assert not (run / "summary.json").exists()


def test_a_full_disk_does_not_end_training(outcomes: Outcomes) -> None:
    run, result = outcomes["full"]
    assert statuses(result) == [ExitStatus.NOT_SAVED, 0], result[0][1]
    first, second = (output for _, output in result)
    assert "the checkpoint of step 14 could not be written" in first
    assert "No space left on device" in first
    assert "step 24/24" in first
    assert "the last checkpoint, of step 24, could not be written" in first
    # Step 7's checkpoint may not be finished when the disk fills.
    continuation = re.search(r"free some space, then the same command continues after step (6|7)\n", first)
    assert f"continues after step {continuation[1]}\n" in second
    undisturbed_run, _ = outcomes["undisturbed"]
    assert learnt(metrics(run)) == learnt(metrics(undisturbed_run))
    assert_same_weights(run, undisturbed_run)


def test_a_loss_that_is_not_finite_stops_with_its_step_and_records(outcomes: Outcomes, dataset: Path) -> None:
    run, [(status, output)] = outcomes["diverged"]
    assert status == ExitStatus.DIVERGED
    failure = json.loads((run / "failure.json").read_text())
    step = failure["step"]
    # Every step is checked, although only steps 1 and 5 are logged.
    assert step == 2
    assert f"step {step}: loss nan" in output
    assert failure["last_checkpoint"] == 1
    assert (
        f"the checkpoint of step 1 is usable. The step read {failure['records'][0]['shard']} slot " in output
    )
    assert Checkpoints(str(run / "checkpoints")).steps() == [1]
    assert all(np.isfinite(value).all() for value in weights(run).values())
    assert [record["step"] for record in metrics(run)] == [1]

    train = open_mixture({str(dataset / "train"): None})
    batches = RowStream(data=train, batch_size=8, seed=0, window_shards=16).batches(step - 1)
    batch = next(batches(tf.distribute.InputContext()).as_numpy_iterator())
    for row, record in zip(batch["input_ids"], failure["records"], strict=True):
        shard = tf.data.TFRecordDataset(str(dataset / "train" / record["shard"]))
        stored = list(shard.as_numpy_iterator())[record["slot"]]
        values = tf.train.Example.FromString(stored).features.feature["input_ids"].int64_list.value
        assert row.tolist() == list(values)
