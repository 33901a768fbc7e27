"""Runs training from the newest checkpoint to the summary."""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import tensorflow as tf

from tpu_trainer.config import FitConfig
from tpu_trainer.data.batches import RowStream
from tpu_trainer.data.mixture import describe
from tpu_trainer.data.plan import DataPlan
from tpu_trainer.data.vocabulary import tokenizer_folder
from tpu_trainer.devices.executor import StepExecutor
from tpu_trainer.runs.checkpoint import WriteErrors
from tpu_trainer.runs.loss_picture import LossPicture
from tpu_trainer.runs.metrics import MetricsLog
from tpu_trainer.runs.run_folder import RunFolder
from tpu_trainer.runs.time_spent import SPENT, TimeSpent, goodput
from tpu_trainer.runs.tracked import TrackedRun
from tpu_trainer.step.schedule import schedule_of
from tpu_trainer.support.errors import InterruptedRun, NotSavedError, UsageError
from tpu_trainer.training.evaluation import ChoiceEvaluator, Evaluations, Evaluator, Validation
from tpu_trainer.training.interruption import Interruption
from tpu_trainer.training.loop import TrainingLoop
from tpu_trainer.training.profiling import Profiler
from tpu_trainer.training.progress import ModelFigures, ProgressLog
from tpu_trainer.training.saving import Saver
from tpu_trainer.training.sources import SourceFigures

_log = logging.getLogger(__name__)


class Run:
    """One process's part of a run, from the newest checkpoint to the summary."""

    def __init__(
        self,
        config: FitConfig,
        *,
        folder: RunFolder,
        rows: RowStream,
        executor: StepExecutor,
        evaluators: Mapping[str, Evaluator],
        choices: Mapping[str, ChoiceEvaluator] = MappingProxyType({}),
        baselines: Mapping[str, float],
        model: ModelFigures,
        time_spent: TimeSpent | None = None,
    ) -> None:
        """Loads the newest checkpoint, if there is one, into the executor.

        `evaluators` are those of the validation splits, `choices` those of multiple-choice items, `baselines` losses to
        compare with, in nats; all by name. `time_spent` has the time since the process started, by default from now on.

        Raises:
            UsageError: If the checkpoint is from other data or another model or has too many steps, or the folder
                cannot be written.
        """
        self._config = config
        self._folder = folder
        self._rows = rows
        self._executor = executor
        self._evaluators = evaluators
        self._choices = choices
        self._baselines = baselines
        self._model = model
        self._time_spent = time_spent or TimeSpent()
        train = rows.data
        self._saver = Saver(
            config, folder=folder, train=train, executor=executor, time_spent=self._time_spent
        )
        self.first_step = self._saver.restore()
        """Updates made before this process."""
        try:
            tokenizer = tokenizer_folder(train.datasets[0], config.data.tokenizer)
            folder.start(config, tokenizer, continues=self.first_step > 0)
            rows_read = rows.rows_read(config.train.steps)
            folder.write_data(
                describe(train, rows_read, {name: each.split for name, each in evaluators.items()})
            )
            self._log = MetricsLog(
                folder,
                last_step=self.first_step,
                tensorboard=config.train.tensorboard,
                time_spent=self._time_spent,
                saved_seconds=self._saver.saved_seconds(self.first_step),
                trackers=lambda records: TrackedRun(config, folder, records) if config.track else None,
            )
        except WriteErrors as error:
            raise UsageError(f"--output_dir is {folder.path!r}: cannot be written ({error})") from error
        schedule = schedule_of(config)
        self._sources = SourceFigures(rows, records=self._log.records, first_step=self.first_step)
        self._progress = ProgressLog(
            log=self._log,
            executor=executor,
            config=config.train,
            learning_rate=lambda step: float(schedule(tf.constant(step))),
            model=model,
            unigram_entropy=baselines.get("unigram entropy"),
            time_spent=self._time_spent,
            sources=self._sources,
        )

    def _announce(self) -> None:
        """Prints model, data and steps."""
        config, train = self._config, self._rows.data
        if len(train.datasets) > 1 or len(train.stages) > 1:
            for line in DataPlan(config, train).lines():
                _log.info(f"fit: {line}")
        _log.info(
            f"fit: {config.model.type} of {self._model.parameters:,} parameters, {len(train):,} rows of "
            f"{train.max_length} tokens, steps {self.first_step + 1} to {config.train.steps} of "
            f"{config.train.batch_size} rows on {self._executor.replicas} replica(s)"
        )
        if self._model.speed is not None and self.first_step < config.train.steps:
            rows = config.train.rows_before(config.train.steps) - config.train.rows_before(self.first_step)
            seconds = self._model.speed.seconds(rows * self._model.flops_per_row)
            _log.info(f"fit: {self._model.speed.describe(seconds)}")

    def train(self) -> dict[str, Any]:
        """Trains, evaluates, and writes and returns the summary. Raises the exceptions of `train_run`."""
        succeeded = False
        try:
            summary = self._train()
            succeeded = True
        finally:
            self._log.finish_trackers(succeeded=succeeded)  # last, since they may take some seconds
        return summary

    def _train(self) -> dict[str, Any]:
        steps = self._config.train.steps
        self._check_same_folder()
        self._announce()
        with Interruption() as interruption:
            loop = self._loop(interruption)
            try:
                if self.first_step < steps:
                    stopped = loop.run(self.first_step)
                    if not stopped:
                        self._saver.save(steps)
                    # A signal can arrive after the loop's last look at it, so the last step is saved first.
                    self._end_if(stopped or loop.interrupted_alone())
                figures = loop.evaluate(steps)
                self._end_if(loop.interrupted_alone())
                self._saver.ensure_saved(steps)
            finally:
                self._saver.wait()
                self._log.close()
                self._saver.end_pushes(interrupted=interruption.requested)
        summary = self._summary(figures)
        try:
            if figures is not None and self._folder.writable:
                self._saver.checkpoints.record(steps, validation_loss=figures.loss)
            self._folder.write_summary(summary)
        except WriteErrors as error:
            raise NotSavedError(f"the summary cannot be written ({error}); rerun the same command") from error
        self._saver.push_last(steps)
        _report(summary, figures, self._folder)
        return summary

    def _check_same_folder(self) -> None:
        """Checks that all processes found the same in the run's folder: it determines when all evaluate and save."""
        evaluated = [record["step"] for record in self._log.records if "eval" in record]
        log = zlib.crc32(json.dumps([evaluated, self._saver.best_loss]).encode()) & 0xFFFF
        checkpoint = self._saver.checkpoints.checksum(self.first_step) if self.first_step else 0
        for value, difference in (
            (self.first_step, f"step {self.first_step} there and another host a different one"),
            (log, "other evaluations in its log and checkpoints than another host"),
            (checkpoint, f"another checkpoint of step {self.first_step} than another host"),
        ):
            if not self._executor.same_in_all_processes(value):
                raise UsageError(
                    f"--output_dir is {self._folder.path!r}: this host found {difference}; all must use the same "
                    "folder, on a shared disk or in a bucket"
                )

    def _loop(self, interruption: Interruption) -> TrainingLoop:
        profiler = Profiler(
            self._executor,
            steps=self._config.profile.range(),
            folder=self._folder.tensorboard,
            time_spent=self._time_spent,
        )
        return TrainingLoop(
            self._config.train,
            executor=self._executor,
            rows=self._rows,
            progress=self._progress,
            validation=self._validation(),
            saver=self._saver,
            profiler=profiler,
            interruption=interruption,
            folder=self._folder,
        )

    def _validation(self) -> Validation | None:
        if not self._evaluators:
            return None
        picture = LossPicture(
            self._folder,
            title=f"{self._config.model.type} on {self._rows.data.path}",
            baselines=self._baselines,
        )
        return Validation(
            self._evaluators,
            choices=self._choices,
            config=self._config.train,
            log=self._log,
            picture=picture,
            saver=self._saver,
            time_spent=self._time_spent,
        )

    def _end_if(self, interrupted: bool) -> None:
        """Raises InterruptedRun after a signal, or NotSavedError if the state could not be saved."""
        if interrupted:
            self._saver.ensure_nothing_failed()
            raise InterruptedRun(f"interrupted; {self._saver.how_to_continue()}")

    def _summary(self, figures: Evaluations | None) -> dict[str, Any]:
        losses = [record["loss"] for record in self._log.records if "loss" in record]
        tokens, spent = self._progress.tokens, self._time_spent.seconds()
        return {
            "steps": self._config.train.steps,
            "data": self._saver.data_before(self._config.train.steps),
            "parameters": self._model.parameters,
            "initial_loss": losses[0] if losses else None,  # the log was lost
            "final_loss": losses[-1] if losses else None,
            "skipped_steps": sum(record.get("skipped_steps", 0) for record in self._log.records),
            "unigram_entropy": self._baselines.get("unigram entropy"),
            "eval": None if figures is None else figures.to_json(),
            "tokens_per_second": round(tokens / self._time_spent.training_seconds()) if tokens else None,
            "sources": self._sources.summary(self._config.train.steps),
            SPENT: spent,
            "goodput": round(goodput(spent), 4),
        }


def _report(summary: dict[str, Any], figures: Evaluations | None, folder: RunFolder) -> None:
    """Prints the summary."""
    text = f"fit: {summary['steps']} steps: training loss "
    if summary["initial_loss"] is None:
        text += "unknown"
    else:
        text += f"{summary['initial_loss']:.3f} → {summary['final_loss']:.3f}"
    if figures is not None:
        text += f", {figures}"
    if summary["unigram_entropy"] is not None:
        text += f"; unigram entropy {summary['unigram_entropy']:.3f}"
    _log.info(f"{text} ({folder.path})")
    for name, source in (summary["sources"] or {}).items():
        loss = "" if source["final_loss"] is None else f", training loss {source['final_loss']:.3f}"
        _log.info(f"fit: {name}: {source['tokens']:,} tokens, {source['epochs']:.2f} epochs{loss}")
    shares = ", ".join(
        f"{kind} {seconds:,.1f}" for kind, seconds in summary[SPENT].items() if seconds >= 0.05
    )
    _log.info(f"fit: goodput {summary['goodput']:.1%} of {sum(summary[SPENT].values()):,.1f} s: {shares}")
