"""One process's part of a run: from the newest checkpoint to the last step, with its log, evaluations and saves."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import tf_keras as keras

from tpu_trainer import files
from tpu_trainer.config import FitConfig
from tpu_trainer.data.dataset import Shard, Split
from tpu_trainer.data.faults import diagnose_read_errors
from tpu_trainer.data.mixture import MixedOrder, Mixture, describe
from tpu_trainer.errors import InterruptedRun, NotSavedError, UsageError
from tpu_trainer.exports.hub import HubPusher
from tpu_trainer.runs.checkpoint import BackgroundSaver, Checkpoints, WriteErrors
from tpu_trainer.runs.curves import loss_picture
from tpu_trainer.runs.metrics import MetricsLog, say
from tpu_trainer.runs.run_folder import RunFolder
from tpu_trainer.training.callbacks import NonFiniteStep, PeriodicCheckpoint, PeriodicEvaluation, Profile
from tpu_trainer.training.evaluation import Evaluation, Evaluator
from tpu_trainer.training.failure import diverged
from tpu_trainer.training.interruption import AgreedEnd, Interruption
from tpu_trainer.training.progress import ProgressLog, Stopwatch
from tpu_trainer.training.schedule import Schedule
from tpu_trainer.training.task import Task


class Run:
    """Trains a task to its last step and leaves everything worth keeping in the run's folder."""

    def __init__(
        self,
        config: FitConfig,
        *,
        folder: RunFolder,
        task: Task,
        schedule: Schedule,
        train: Mixture,
        evaluator: Evaluator | None,
        baselines: dict[str, float],
        hosts: int,
        processes: int,
    ) -> None:
        """Reads the newest checkpoint, where there is one, into the task.

        Args:
            config: The run's.
            folder: Where everything goes.
            task: Compiled, its optimizer built.
            schedule: The learning rate of an update.
            train: What is learnt from.
            evaluator: Of the validation split; None: no evaluation.
            baselines: Losses to compare with, by name, nats.
            hosts: Hosts that share it.
            processes: Processes that train together: one for each host, or one alone, which drives a TPU's hosts.

        Raises:
            UsageError: The checkpoint there is of other data or another model, or has more steps already.
        """
        self._config = config
        self._folder = folder
        self._task = task
        self._schedule = schedule
        self._train = train
        self._evaluator = evaluator
        self._baselines = baselines
        self._hosts = hosts
        self._alone = processes == 1
        self._checkpoints = Checkpoints(folder.checkpoints, keep=config.train.keep_checkpoints)
        self._pusher = None
        if config.hub_model_id is not None and folder.writable:
            self._pusher = HubPusher(config.hub_model_id, private=config.hub_private, folder=folder)
        self._saver = BackgroundSaver(
            self._checkpoints, report=self._report_failed_save, saved=self._push_in_background
        )
        self._stopwatch = Stopwatch()
        self._interruption = Interruption()
        self._agreed_end = AgreedEnd()
        self._ends = False
        self._state = task.state()
        self.first_step = self._restore()
        """Updates made before this process."""
        try:
            folder.start(config, train.tokenizer_path)
            folder.write_data(describe(train, None if evaluator is None else evaluator.split))
        except WriteErrors as error:
            raise UsageError(f"--output_dir is {folder.path!r}: cannot be written ({error})") from error
        self._log = MetricsLog(folder, last_step=self.first_step, tensorboard=config.train.tensorboard)
        best = self._checkpoints.best()
        self._best_loss = math.inf if best is None else self._checkpoints.metadata(best)["validation_loss"]

    def _restore(self) -> int:
        """The updates that the newest checkpoint holds; 0 where there is none."""
        found = self._checkpoints.steps()
        if not found:
            return 0
        step = found[-1]
        if step > self._config.train.steps:
            raise UsageError(
                f"--train.steps is {self._config.train.steps}, but the run's newest checkpoint has {step} steps already"
            )
        if self._checkpoints.metadata(step)["data"] != self._train.fingerprint:
            raise UsageError(
                f"{self._train.path}: not the data that the run's checkpoint of step {step} was trained on; "
                "use another --output_dir"
            )
        self._checkpoints.restore(step, **self._state)
        say(f"fit: continues after step {step}")
        return step

    def train(
        self, batches: Callable[[int], Any], *, flops_per_row: float, peak_flops: float | None
    ) -> dict[str, Any]:
        """Trains, evaluates and writes the summary, which it returns.

        Args:
            batches: The training stream from a step on, as Keras' fit takes it.
            flops_per_row: Floating-point operations that training on a row takes.
            peak_flops: The most that all devices together can do in a second; None where it is not known.

        Raises:
            DivergedError: The loss or the gradient is not finite.
            InterruptedRun: A signal asked for the end; the state is saved.
            NotSavedError: The last state could not be written.
        """
        steps = self._config.train.steps
        progress = self._progress_log(flops_per_row, peak_flops)
        with self._interruption:
            try:
                if self.first_step < steps:
                    self._fit(batches(self.first_step), progress)
                    self._stop_if_interrupted()
                    self._save(steps)
                figures = self._evaluate(steps)
                self._stop_if_interrupted()
                self._save_for_certain(steps)
            finally:
                self._saver.wait()
                self._log.close()
        losses = [record["loss"] for record in self._log.records if "loss" in record]
        speed = round(progress.tokens / self._stopwatch.seconds()) if progress.tokens else None
        summary = {
            "steps": steps,
            "data": self._train.fingerprint,
            "parameters": sum(v.shape.num_elements() for v in self._task.network.trainable_variables),
            "initial_loss": losses[0],
            "final_loss": losses[-1],
            "skipped_steps": sum(record.get("skipped_steps", 0) for record in self._log.records),
            "unigram_entropy": self._baselines.get("unigram entropy"),
            "eval": None if figures is None else figures.to_json(),
            "tokens_per_second": speed,
        }
        try:
            if figures is not None and self._folder.writable:
                self._checkpoints.record(steps, validation_loss=figures.loss)
            self._folder.write_summary(summary)
        except WriteErrors as error:
            raise NotSavedError(
                f"the summary cannot be written ({error}); run the same command again"
            ) from error
        if self._pusher is not None:
            self._pusher.finish(steps)
        return summary

    def _fit(self, batches: Any, progress: ProgressLog) -> None:
        try:
            with diagnose_read_errors(self._shards_in_use()):
                self._task.fit(
                    batches,
                    steps_per_epoch=self._config.train.steps - self.first_step,
                    callbacks=[progress, *self._callbacks()],
                    verbose=0,
                )
        except NonFiniteStep:
            self._saver.wait()
            raise diverged(
                self._task.non_finite(),
                config=self._config,
                folder=self._folder,
                checkpoints=self._checkpoints,
                train=self._train,
                hosts=self._hosts,
            ) from None

    def _shards_in_use(self) -> Iterator[tuple[Split, Shard]]:
        """The shards that are read, or read ahead, at the present step; found when first asked for."""
        position = int(self._task.optimizer.iterations) * (self._config.train.batch_size // self._hosts)
        for host in range(self._hosts):
            order = MixedOrder(
                self._train,
                seed=self._config.seed,
                window_shards=self._config.data.window_shards,
                host=host,
                hosts=self._hosts,
            )
            for dataset, shard in order.shards(position):
                split = self._train.splits[dataset]
                yield split, split.shards[shard]

    def _progress_log(self, flops_per_row: float, peak_flops: float | None) -> ProgressLog:
        return ProgressLog(
            log=self._log,
            first_step=self.first_step,
            steps=self._config.train.steps,
            every=self._config.train.log_every,
            batch_size=self._config.train.batch_size,
            schedule=self._schedule,
            unigram_entropy=self._baselines.get("unigram entropy"),
            flops_per_row=flops_per_row,
            peak_flops=peak_flops,
            stopwatch=self._stopwatch,
        )

    def _callbacks(self) -> list[keras.callbacks.Callback]:
        train = self._config.train
        callbacks: list[keras.callbacks.Callback] = []
        if self._evaluator is not None and train.evaluate_every is not None:
            due = self.first_step > 0 and self.first_step % train.evaluate_every == 0
            evaluated = {record["step"] for record in self._log.records if "eval" in record}
            callbacks.append(
                PeriodicEvaluation(
                    evaluate=self._evaluate,
                    first_step=self.first_step,
                    steps=train.steps,
                    every=train.evaluate_every,
                    due=due and self.first_step not in evaluated,
                )
            )
        callbacks.append(
            PeriodicCheckpoint(
                save=self._save,
                busy=lambda: self._saver.busy,
                interrupted=self._must_end,
                first_step=self.first_step,
                every=train.checkpoint_every,
                minutes=train.checkpoint_minutes,
            )
        )
        if (profiled := self._config.profile.range()) is not None:
            callbacks.append(
                Profile(
                    folder=self._folder.tensorboard,
                    first=profiled[0],
                    last=profiled[1],
                    first_step=self.first_step,
                    paused=self._stopwatch.paused,
                )
            )
        return callbacks

    def _must_end(self, logs: dict[str, Any]) -> bool:
        """Whether training is to end after the step of these logs; all processes say the same."""
        if self._alone:
            self._ends = self._interruption.requested
        else:
            self._ends = self._agreed_end.ends(logs["end_requested"])
            if self._interruption.requested:
                self._task.request_end()
        return self._ends

    def _save(self, step: int, **metadata: Any) -> None:
        if not self._folder.writable:
            return
        with self._stopwatch.paused():
            known = {"data": self._train.fingerprint, "max_length": self._train.max_length}
            self._saver.save(step, metadata=known | metadata, **self._state)

    def _push_in_background(self, step: int) -> None:
        if self._pusher is not None and step < self._config.train.steps:
            self._pusher.push_in_background(step)

    def _report_failed_save(self, step: int, message: str) -> None:
        say(f"fit: the checkpoint of step {step} could not be written ({message}); training goes on")

    def _evaluate(self, step: int) -> Evaluation | None:
        """The figures of the present weights, logged; and the weights saved where they are the best so far.

        None where there is no validation split, or where a signal asks to end.
        """
        if self._evaluator is None:
            return None
        with self._stopwatch.paused():
            average = self._task.average
            with nullcontext() if average is None else average.in_place():
                # Several processes evaluate together, or wait for each other for ever.
                figures = self._evaluator.run(stop=lambda: self._alone and self._interruption.requested)
            if figures is None:
                return None
            self._log.append({"step": step, "eval": figures.to_json()})
            if step < self._config.train.steps:
                say(f"step {step}: validation loss {figures.loss:.3f} accuracy {figures.accuracy:.3f}")
            self._draw()
        if figures.loss < self._best_loss:
            self._best_loss = figures.loss
            self._save(step, validation_loss=figures.loss)
        return figures

    def _draw(self) -> None:
        if not self._folder.writable:
            return
        title = f"{self._config.model.type} on {self._train.path}"
        try:
            picture = loss_picture(self._log.records, title=title, baselines=self._baselines)
            files.write_text(self._folder.loss_picture, picture)
        except WriteErrors as error:
            say(f"fit: {self._folder.loss_picture} cannot be written ({error}); training goes on")

    def _stop_if_interrupted(self) -> None:
        if not (self._ends or (self._alone and self._interruption.requested)):
            return
        self._saver.wait()
        if self._saver.failed:
            raise NotSavedError(f"interrupted, and the last state could not be saved; {self._restart()}")
        raise InterruptedRun(f"interrupted; {self._restart()}")

    def _restart(self) -> str:
        if not self._folder.writable:
            return "the same command on all hosts continues after what the first one has saved"
        steps = self._checkpoints.steps()
        return f"the same command continues after step {steps[-1] if steps else 0}"

    def _save_for_certain(self, step: int) -> None:
        """The last weights are what a run is for: a save that failed is tried once more."""
        self._saver.wait()
        if self._saver.failed:
            self._save(step)
            self._saver.wait()
        if self._saver.failed:
            raise NotSavedError(
                f"the last checkpoint, of step {step}, could not be written to {self._folder.checkpoints}: make room "
                f"and {self._restart()}"
            )


def report(summary: dict[str, Any], folder: RunFolder) -> None:
    """Says on stderr what training ended with."""
    text = f"fit: {summary['steps']} steps: training loss {summary['initial_loss']:.3f} → {summary['final_loss']:.3f}"
    if summary["eval"] is not None:
        text += f", validation loss {summary['eval']['loss']:.3f} accuracy {summary['eval']['accuracy']:.3f}"
    if summary["unigram_entropy"] is not None:
        text += f"; unigram entropy {summary['unigram_entropy']:.3f}"
    print(f"{text} ({folder.path})", file=sys.stderr)
