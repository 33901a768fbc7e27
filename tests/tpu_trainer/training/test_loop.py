"""The training loop with a NumPy executor, without devices or TensorFlow."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.fake_tracker import FakeTracker
from tests.tpu_trainer.small_runs import learnt, metrics
from tokenmill_reader.tracking import trackers
from tpu_trainer.config import DataConfig, FitConfig, TrainConfig
from tpu_trainer.data.batches import DatasetFunction, RowStream
from tpu_trainer.data.dataset import open_split
from tpu_trainer.data.mixture import open_mixture
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.devices.executor import StepExecutor, StepOutput
from tpu_trainer.network.objectives import BatchSums
from tpu_trainer.runs.checkpoint import Checkpoints
from tpu_trainer.runs.loss_picture import LossPicture
from tpu_trainer.runs.parts import Parts, StoredArray, whole_parts
from tpu_trainer.runs.run_folder import RunFolder
from tpu_trainer.runs.time_spent import KINDS, TimeSpent
from tpu_trainer.step.results import NonFinite, RunningSums
from tpu_trainer.support.errors import DivergedError, InterruptedRun, UsageError
from tpu_trainer.training import run as run_module
from tpu_trainer.training.evaluation import Evaluator
from tpu_trainer.training.expected_time import Speed
from tpu_trainer.training.interruption import Interruption
from tpu_trainer.training.profiling import Profiler
from tpu_trainer.training.progress import ModelFigures
from tpu_trainer.training.run import Run

ROWS = 8
STEPS = 20


class NumpyExecutor(StepExecutor):
    """Sums the numbers of the rows that it is trained on."""

    replicas = 1

    def __init__(self, *, signal_at: int | None = None, diverges_at: int | None = None) -> None:
        self.values = {"weights": np.zeros(3), "running": np.zeros(RunningSums.size(0))}
        self.calls: list[range] = []
        self._signal_at = signal_at
        self._diverges_at = diverges_at

    def distribute(self, rows: DatasetFunction) -> Iterable[Any]:
        return rows(tf.distribute.InputContext()).as_numpy_iterator()

    def train(self, batches: Iterator[Any], steps: range) -> StepOutput:
        self.calls.append(steps)
        for _ in steps:
            numbers = next(batches)["row"].astype(np.float64)
            self.values["weights"] += [numbers.sum(), (numbers**2).sum(), 1]
            self.values["running"] += [numbers.sum(), 1, ROWS, 10, 1, 1, 0]
        if self._signal_at in range(steps.start + 1, steps.stop + 1):
            os.kill(os.getpid(), signal.SIGTERM)
            while not self.interrupted():
                pass
        return StepOutput(0.0)

    def interrupted(self) -> bool:
        raise NotImplementedError

    def evaluate(self, batch: Any) -> BatchSums:
        return BatchSums(1.0 / (1 + self.values["weights"][2]), 1.0, 1.0, 1.0)

    def row_sums(self, batch: Any, count: int) -> np.ndarray:
        raise NotImplementedError

    def evaluated_weights(self) -> AbstractContextManager[None]:
        return nullcontext()

    def sums(self) -> RunningSums:
        return RunningSums(*self.values["running"].tolist())

    def clear_sums(self) -> None:
        self.values["running"][:] = 0

    def non_finite(self) -> NonFinite | None:
        end_step = self.calls[-1].stop
        if self._diverges_at is None or end_step < self._diverges_at:
            return None
        return NonFinite(self._diverges_at, float("nan"), 1.0)

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: value.shape for name, value in self.values.items()}

    def state(self) -> Parts:
        return whole_parts({name: value.copy() for name, value in self.values.items()})

    def load_state(self, values: Iterable[tuple[str, np.ndarray | StoredArray]]) -> None:
        self.values = {name: value[...].copy() for name, value in values}

    def profile(self, folder: str) -> AbstractContextManager[None]:
        return nullcontext()


def run_of(
    dataset: Path,
    vocabulary: Vocabulary,
    path: Path,
    executor: NumpyExecutor,
    *,
    writable: bool = True,
    strict: bool = False,
    tokenizer: Path | None = None,
    speed: Speed | None = None,
    splits: dict[str, str] | None = None,
    track: str | None = None,
    time_spent: TimeSpent | None = None,
    **train: Any,
) -> tuple[Run, NumpyExecutor]:
    defaults = {"log_every": 5, "evaluate_every": 6, "checkpoint_every": 7, "keep_checkpoints": 9}
    options = {"steps": STEPS} | defaults | train
    config = FitConfig(
        output_dir=str(path),
        data=DataConfig(
            train=str(dataset / "train"), tokenizer=None if tokenizer is None else str(tokenizer)
        ),
        strict=strict,
        track=track,
        train=TrainConfig(batch_size=ROWS, tensorboard=False, **options),
    )
    data = open_mixture({str(dataset / "train"): None})
    run = Run(
        config,
        folder=RunFolder(str(path), writable=writable),
        rows=RowStream(data=data, batch_size=ROWS, seed=0, window_shards=2),
        executor=executor,
        evaluators={
            name: Evaluator(
                executor,
                split=open_split(str(dataset / split)),
                vocabulary=vocabulary,
                batch_size=ROWS,
                batch_size_option="batch_size",
            )
            for name, split in (splits or {"": "validation"}).items()
        },
        baselines={},
        model=ModelFigures(parameters=3, flops_per_row=1.0, peak_flops=None, speed=speed),
        time_spent=time_spent,
    )
    return run, executor


def test_the_loop_logs_evaluates_and_saves_when_due(
    dataset: Path, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    run, executor = run_of(dataset, vocabulary, tmp_path, NumpyExecutor())
    summary = run.train()
    assert executor.calls == [range(step, step + 1) for step in range(STEPS)]
    lines = metrics(tmp_path)
    assert [line["step"] for line in lines if "loss" in line] == [1, 5, 10, 15, 20]
    assert [line["step"] for line in lines if "eval" in line] == [6, 12, 18, 20]
    # Every evaluation is the best so far.
    assert Checkpoints(str(tmp_path / "checkpoints")).steps() == [6, 7, 12, 14, 18, 20]
    assert summary["eval"]["loss"] == pytest.approx(1 / (1 + STEPS))


def test_a_run_tells_how_long_its_remaining_steps_take_before_the_first(
    dataset: Path, vocabulary: Vocabulary, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # A row is one operation.
    speed = Speed(flops=ROWS / 60, is_cpu=True)
    run_of(dataset, vocabulary, tmp_path, NumpyExecutor(), speed=speed, steps=7)[0].train()
    lines = capsys.readouterr().err.splitlines()
    (line,) = (number for number, text in enumerate(lines) if "about" in text)
    assert lines[line] == "fit: about 7 minutes on this CPU, without compilation"
    assert "steps 1 to 7" in lines[line - 1] and lines[line + 1].startswith("step 1/7")
    run_of(dataset, vocabulary, tmp_path, NumpyExecutor(), speed=speed)[0].train()
    assert f"about {STEPS - 7} minutes" in capsys.readouterr().err


def test_with_several_steps_per_call_due_actions_follow_the_call(
    dataset: Path, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    run, executor = run_of(dataset, vocabulary, tmp_path, NumpyExecutor(), steps_per_execution=3)
    run.train()
    assert executor.calls[-2:] == [range(15, 18), range(18, 20)]
    lines = metrics(tmp_path)
    assert [line["step"] for line in lines if "loss" in line] == [3, 6, 12, 15, 20]
    assert [line["step"] for line in lines if "eval" in line] == [6, 12, 18, 20]


def test_a_signal_saves_the_step_and_the_next_process_ends_like_an_uninterrupted_run(
    dataset: Path, vocabulary: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed_run, undisturbed_executor = run_of(
        dataset, vocabulary, tmp_path / "undisturbed", NumpyExecutor()
    )
    undisturbed_run.train()
    first, executor = run_of(dataset, vocabulary, tmp_path / "run", NumpyExecutor(signal_at=9))
    interruption = run_module.Interruption()
    monkeypatch.setattr(run_module, "Interruption", lambda: interruption)
    monkeypatch.setattr(executor, "interrupted", lambda: interruption.requested)
    with pytest.raises(InterruptedRun, match="the same command continues after step 9"):
        first.train()
    monkeypatch.undo()
    second, executor = run_of(dataset, vocabulary, tmp_path / "run", NumpyExecutor())
    assert second.first_step == 9
    second.train()
    np.testing.assert_array_equal(executor.values["weights"], undisturbed_executor.values["weights"])
    assert learnt(metrics(tmp_path / "run")) == learnt(metrics(tmp_path / "undisturbed"))


@pytest.mark.parametrize("is_killed", [False, True])
def test_an_evaluation_that_is_repeated_can_be_the_best(
    dataset: Path, vocabulary: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_killed: bool
) -> None:
    first, executor = run_of(dataset, vocabulary, tmp_path, NumpyExecutor(signal_at=12))
    interruption = run_module.Interruption()
    monkeypatch.setattr(run_module, "Interruption", lambda: interruption)
    monkeypatch.setattr(executor, "interrupted", lambda: interruption.requested)
    with pytest.raises(InterruptedRun, match="the same command continues after step 12"):
        first.train()
    monkeypatch.undo()
    if is_killed:  # after the evaluation was logged

        def kill(*arguments: Any) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(LossPicture, "draw", kill)
        with pytest.raises(KeyboardInterrupt):
            run_of(dataset, vocabulary, tmp_path, NumpyExecutor())[0].train()
        monkeypatch.undo()
    run_of(dataset, vocabulary, tmp_path, NumpyExecutor())[0].train()
    checkpoints = Checkpoints(str(tmp_path / "checkpoints"))
    evaluated = [step for step in checkpoints.steps() if "validation_loss" in checkpoints.metadata(step)]
    assert evaluated == [6, 12, 18, 20]
    # Without its log, a finished run can still be summarized.
    for name in ("metrics.jsonl", "summary.json"):
        (tmp_path / name).unlink()
    assert run_of(dataset, vocabulary, tmp_path, NumpyExecutor())[0].train()["final_loss"] is None


def test_a_signal_between_the_last_step_and_its_save_loses_nothing(
    dataset: Path, vocabulary: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interruption = Interruption()
    monkeypatch.setattr(run_module, "Interruption", lambda: interruption)

    def terminate(profiler: Profiler, steps: range) -> None:
        if steps.stop == STEPS:
            os.kill(os.getpid(), signal.SIGTERM)
            while not interruption.requested:
                pass

    monkeypatch.setattr(Profiler, "after", terminate)
    options = {"checkpoint_every": STEPS + 1, "evaluate_every": None}
    run, executor = run_of(dataset, vocabulary, tmp_path, NumpyExecutor(), **options)
    with pytest.raises(InterruptedRun, match=f"the same command continues after step {STEPS}"):
        run.train()
    monkeypatch.undo()
    second, second_executor = run_of(dataset, vocabulary, tmp_path, NumpyExecutor(), **options)
    assert second.first_step == STEPS
    second.train()
    assert not second_executor.calls
    np.testing.assert_array_equal(second_executor.values["weights"], executor.values["weights"])


def test_a_run_continues_before_a_damaged_checkpoint_unless_it_is_strict(
    dataset: Path, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    first, executor = run_of(dataset, vocabulary, tmp_path, NumpyExecutor())
    first.train()
    for step in (18, 20):
        (tmp_path / "checkpoints" / f"step-000000{step}" / "state.data-00000-of-00001").write_bytes(b"")
    with pytest.raises(UsageError, match=r"step-00000020: damaged \(.*remove this folder"):
        run_of(dataset, vocabulary, tmp_path, NumpyExecutor(), strict=True)
    second, second_executor = run_of(dataset, vocabulary, tmp_path, NumpyExecutor())
    assert second.first_step == 14
    second.train()
    np.testing.assert_array_equal(second_executor.values["weights"], executor.values["weights"])
    checkpoints = Checkpoints(str(tmp_path / "checkpoints"))
    checkpoints.leave_out_damaged(strict=True)
    assert checkpoints.steps() == [6, 7, 12, 14, 18, 20]


def test_a_run_does_not_continue_with_another_tokenizer(
    dataset: Path, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    """Without a manifest, nothing else shows that it is another one."""
    first, _ = run_of(dataset, vocabulary, tmp_path / "run", NumpyExecutor(), steps=5)
    first.train()
    before = (tmp_path / "run" / "tokenizer" / "tokenizer.json").read_text()
    other_tokenizer = tmp_path / "other"
    shutil.copytree(dataset / "tokenizer", other_tokenizer)
    (other_tokenizer / "tokenizer.json").write_text(before.replace('"w1"', '"w100"'))
    with pytest.raises(UsageError, match=r"other: not the tokenizer that the run in .* was trained with"):
        run_of(dataset, vocabulary, tmp_path / "run", NumpyExecutor(), tokenizer=other_tokenizer)
    assert (tmp_path / "run" / "tokenizer" / "tokenizer.json").read_text() == before
    shutil.copytree(dataset / "tokenizer", other_tokenizer, dirs_exist_ok=True)
    run_of(dataset, vocabulary, tmp_path / "run", NumpyExecutor(), tokenizer=other_tokenizer)
    config = other_tokenizer / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"mask_token": "<unk>"}))
    with pytest.raises(UsageError, match=r"other: not the tokenizer that the run in .* was trained with"):
        run_of(dataset, vocabulary, tmp_path / "run", NumpyExecutor(), tokenizer=other_tokenizer)


def test_a_save_that_raises_ends_training_before_the_next_save(
    dataset: Path, vocabulary: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_error(*args: Any, **kwargs: Any) -> None:
        raise ValueError("a bug")

    class Waiting(NumpyExecutor):
        def train(self, batches: Iterator[Any], steps: range) -> StepOutput:
            while any(thread.name == "checkpoint" for thread in threading.enumerate()):
                pass
            return super().train(batches, steps)

    monkeypatch.setattr(Checkpoints, "write", raise_error)
    run, executor = run_of(dataset, vocabulary, tmp_path, Waiting(), evaluate_every=None)
    with pytest.raises(ValueError, match="a bug"):
        run.train()
    assert executor.calls[-1].stop == 8  # the one after that of the save


def test_hosts_that_find_another_log_or_best_checkpoint_do_not_train(
    dataset: Path, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    """They would evaluate or save alone, and the others would never join them."""
    first, _ = run_of(dataset, vocabulary, tmp_path, NumpyExecutor(), steps=12)
    first.train()

    class Peer(NumpyExecutor):
        def same_in_all_processes(self, value: int) -> bool:
            exchanged.append(value)
            return len(exchanged) < different

    def exchange_values(
        message: str = "this host found other evaluations in its log and checkpoints",
    ) -> list[int]:
        run, _ = run_of(dataset, vocabulary, tmp_path, Peer(), writable=False)
        exchanged.clear()
        with pytest.raises(UsageError, match=message):
            run.train()
        return list(exchanged)

    exchanged: list[int] = []
    different = 2
    expected = exchange_values()
    assert exchange_values() == expected
    log = tmp_path / "metrics.jsonl"
    text = log.read_text()
    log.write_text("".join(line for line in text.splitlines(keepends=True) if "eval" not in line))
    assert exchange_values() != expected
    log.write_text(text)
    different = 3
    same_log = exchange_values("this host found another checkpoint of step 12")
    assert same_log[:2] == expected
    checkpoints = Checkpoints(str(tmp_path / "checkpoints"), keep=9)
    checkpoints.record(12, validation_loss=checkpoints.metadata(12)["validation_loss"] + 1)
    assert exchange_values("this host found another checkpoint of step 12")[2] != same_log[2]
    different = 2
    checkpoints.record(12, validation_loss=0.5)
    assert exchange_values() != expected


def test_only_the_process_that_writes_saves_by_the_clock(
    dataset: Path, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    """Another one cannot know whether the previous save is finished, and training would wait for it."""

    class Gathering(NumpyExecutor):
        processes = 2

        def same_in_all_processes(self, value: int) -> bool:
            return True

        def request_save(self) -> None:
            requests.append(1)

    for writable in (True, False):
        requests: list[int] = []
        options = {"checkpoint_minutes": 1e-9, "evaluate_every": None}
        run, _ = run_of(
            dataset, vocabulary, tmp_path / str(writable), Gathering(), writable=writable, **options
        )
        run.train()
        assert bool(requests) == writable


def test_a_step_that_diverges_ends_the_run_before_anything_is_saved(
    dataset: Path, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    run, _ = run_of(dataset, vocabulary, tmp_path, NumpyExecutor(diverges_at=9))
    with pytest.raises(DivergedError, match=r"step 9: loss nan.*the checkpoint of step 7 is usable"):
        run.train()
    failure = json.loads((tmp_path / "failure.json").read_text())
    assert (failure["step"], failure["last_checkpoint"], len(failure["records"])) == (9, 7, ROWS)
    assert [line["step"] for line in metrics(tmp_path) if "loss" in line] == [1, 5]
    # Only one of several hosts writes the file; all show the error.
    other_run, _ = run_of(
        dataset, vocabulary, tmp_path / "other", NumpyExecutor(diverges_at=9), writable=False
    )
    with pytest.raises(DivergedError, match="step 9: loss nan"):
        other_run.train()
    assert not (tmp_path / "other").exists()


class TimedExecutor(NumpyExecutor):
    """Takes 30 s for the first call, 2 s for others, half a second of which are waits for rows, and so on."""

    def __init__(self, *, killed_in: int | None = None) -> None:
        super().__init__()
        self.seconds = 100.0
        self._killed_in = killed_in

    def clock(self) -> float:
        return self.seconds

    def train(self, batches: Iterator[Any], steps: range) -> StepOutput:
        if steps.stop == self._killed_in:
            raise KeyboardInterrupt
        self.seconds += 2 if self.calls else 30
        super().train(batches, steps)
        return StepOutput(0.5)

    def evaluate(self, batch: Any) -> BatchSums:
        self.seconds += 1
        return super().evaluate(batch)

    def state(self) -> Parts:
        self.seconds += 3
        return super().state()


def test_the_time_of_a_run_is_divided_over_its_processes(
    dataset: Path, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    def timed_run(executor: TimedExecutor) -> Run:
        spent = TimeSpent(executor.clock)
        executor.seconds += 7
        return run_of(dataset, vocabulary, tmp_path, executor, time_spent=spent)[0]

    with pytest.raises(KeyboardInterrupt):
        timed_run(TimedExecutor(killed_in=17)).train()
    batches = -(-len(open_split(str(dataset / "validation"))) // ROWS)
    # Steps 2 to 15; evaluations after 6 and 12; checkpoints after 6, 7, 12 and 14.
    known = {"start": 7, "compile": 30, "input": 7, "step": 21, "checkpoint": 12, "evaluation": 2 * batches}
    assert metrics(tmp_path)[-1]["spent_seconds"] == dict.fromkeys(KINDS, 0) | known
    summary = timed_run(TimedExecutor()).train()
    # Step 15 is lost, and is the first of the second process. 18 has an evaluation and a checkpoint; 20 has two copies.
    expected = {"start": 14, "compile": 60, "input": 7, "step": 29, "checkpoint": 21}
    expected |= {"evaluation": 4 * batches, "other": 0, "lost": 2}
    assert summary["spent_seconds"] == expected
    assert summary["goodput"] == pytest.approx(29 / sum(expected.values()), abs=1e-4)


def test_a_tracker_that_hangs_changes_nothing(
    dataset: Path, vocabulary: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeTracker(tmp_path, monkeypatch).write("time.sleep(9999)")
    monkeypatch.setattr(trackers, "SECONDS_TO_FINISH", 0.1)
    monkeypatch.setattr(trackers, "SECONDS_ALONE", 1)
    plain, executor = run_of(dataset, vocabulary, tmp_path / "plain", NumpyExecutor())
    plain.train()
    tracked, tracked_executor = run_of(
        dataset, vocabulary, tmp_path / "tracked", NumpyExecutor(), track="trackio"
    )
    tracked.train()
    assert learnt(metrics(tmp_path / "tracked")) == learnt(metrics(tmp_path / "plain"))
    np.testing.assert_array_equal(tracked_executor.values["weights"], executor.values["weights"])


def test_a_tracker_gets_the_records_of_a_run_that_was_interrupted(
    dataset: Path, vocabulary: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeTracker(tmp_path, monkeypatch)
    for executor in (TimedExecutor(killed_in=17), NumpyExecutor()):
        run, _ = run_of(dataset, vocabulary, tmp_path / "run", executor, track="trackio")
        with suppress(KeyboardInterrupt):
            run.train()
    calls = fake.calls()
    names = {call[1] for call in calls if call[0] == "init"}
    assert len(names) == 1
    steps = [call[1] for call in calls if call[0] == "log"]
    assert steps == [record["step"] for record in metrics(tmp_path / "run")]
