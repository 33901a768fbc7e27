"""A run, from its parts to its summary."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import tensorflow as tf

from tpu_trainer.callbacks import PeriodicCheckpoint, PeriodicEvaluation, ProgressLog, Stopwatch
from tpu_trainer.checkpoint import Checkpoints
from tpu_trainer.config import FitConfig
from tpu_trainer.data import training_batches
from tpu_trainer.dataset import Split
from tpu_trainer.errors import UsageError
from tpu_trainer.evaluation import Evaluator
from tpu_trainer.masking import Masking
from tpu_trainer.model import LanguageModel, target_counts, unigram_entropy
from tpu_trainer.objectives import CausalLanguageModelling, MaskedLanguageModelling, Objective
from tpu_trainer.optimizer import build_optimizer
from tpu_trainer.run_folder import RunFolder
from tpu_trainer.schedule import Schedule
from tpu_trainer.strategy import build_strategy, check_batch_size, is_tpu
from tpu_trainer.task import Task
from tpu_trainer.vocabulary import Vocabulary, load_vocabulary


def build_task(
    config: FitConfig,
    *,
    vocabulary: Vocabulary,
    max_length: int,
    strategy: tf.distribute.Strategy,
    token_counts: np.ndarray | None = None,
) -> Task:
    """The task of `config`, compiled for `strategy` with its optimizer; call it in the strategy's scope.

    `token_counts` (float[vocabulary.size]), where given, make the initial output bias.
    """
    model = LanguageModel.create(
        config.model,
        objective=config.objective,
        vocabulary=vocabulary,
        max_length=max_length,
        seed=config.seed,
    )
    if token_counts is not None:
        model.init_output_bias(target_counts(token_counts, vocabulary, config.objective))
    alone = strategy.num_replicas_in_sync == 1
    task = Task(
        objective=_objective(config, model, max_length),
        seed=config.seed,
        clip_norm=config.optimizer.clip_norm,
        compile_gradients=not alone and not is_tpu(strategy),
    )
    optimizer = build_optimizer(
        config.optimizer,
        _schedule(config),
        variables=model.network.trainable_variables,
    )
    # None, not False, on a TPU: there XLA is implied.
    task.compile(optimizer=optimizer, jit_compile=True if alone and not is_tpu(strategy) else None)
    return task


def _objective(config: FitConfig, model: LanguageModel, max_length: int) -> Objective:
    if config.objective == "clm":
        return CausalLanguageModelling(model=model)
    masking = Masking(vocabulary=model.vocabulary, max_length=max_length, probability=config.mlm.probability)
    return MaskedLanguageModelling(model=model, masking=masking)


def _schedule(config: FitConfig) -> Schedule:
    return Schedule(config.schedule, peak=config.optimizer.learning_rate, steps=config.train.steps)


def train_run(
    config: FitConfig, *, folder: RunFolder, train: Split, validation: Split | None
) -> dict[str, Any]:
    """Trains from the newest checkpoint in `folder`, or from the beginning, to the last step.

    Returns the summary, which is also written to the folder and printed. Raises UsageError where the tokenizer, the
    strategy or the checkpoint does not fit.
    """
    vocabulary = load_vocabulary(train, config.objective)
    token_counts = train.token_counts()
    if config.model.init_output_bias and token_counts is None:
        raise UsageError(
            f"--model.init_output_bias needs the token counts of {train.path}/statistics.json, which is not there"
        )
    strategy = build_strategy(config.strategy)
    check_batch_size(config.train.batch_size, strategy, "train.batch_size")
    with strategy.scope():
        task = build_task(
            config,
            vocabulary=vocabulary,
            max_length=train.max_length,
            strategy=strategy,
            token_counts=token_counts if config.model.init_output_bias else None,
        )
    evaluator = None
    if validation is not None:
        evaluator = Evaluator(
            task=task,
            split=validation,
            vocabulary=vocabulary,
            batch_size=config.train.evaluation_batch_size or config.train.batch_size,
            batch_size_option="train.evaluation_batch_size",
            strategy=strategy,
        )
    checkpoints = Checkpoints(folder.checkpoints, keep=config.train.keep_checkpoints)
    state = {"network": task.network, "optimizer": task.optimizer, "running": task.running}
    first_step = _restore(checkpoints, state, train, config.train.steps)
    folder.start(config, train.tokenizer_path)
    folder.keep_metrics(first_step)

    def save(step: int) -> None:
        checkpoints.save(step, metadata={"data": train.fingerprint, "max_length": train.max_length}, **state)

    entropy = None if token_counts is None else unigram_entropy(token_counts, vocabulary, config.objective)
    stopwatch = Stopwatch()
    log = ProgressLog(
        folder=folder,
        first_step=first_step,
        steps=config.train.steps,
        every=config.train.log_every,
        schedule=_schedule(config),
        unigram_entropy=entropy,
        stopwatch=stopwatch,
    )
    callbacks = [log]
    if evaluator is not None and config.train.evaluate_every is not None:
        callbacks.append(
            PeriodicEvaluation(
                evaluator=evaluator,
                folder=folder,
                first_step=first_step,
                steps=config.train.steps,
                every=config.train.evaluate_every,
                stopwatch=stopwatch,
            )
        )
    callbacks.append(
        PeriodicCheckpoint(
            save=save, first_step=first_step, every=config.train.checkpoint_every, stopwatch=stopwatch
        )
    )
    parameters = sum(int(np.prod(variable.shape)) for variable in task.network.trainable_variables)
    print(
        f"fit: {config.model.type} of {parameters:,} parameters, {train.num_rows:,} rows of {train.max_length} tokens, "
        f"steps {first_step + 1} to {config.train.steps} of {config.train.batch_size} rows on "
        f"{strategy.num_replicas_in_sync} replica(s)",
        file=sys.stderr,
    )
    for feature in task.objective.model.unheeded(train.features):
        print(
            f"fit: a model of type {config.model.type!r} does not heed the rows' {feature}", file=sys.stderr
        )
    if first_step < config.train.steps:
        batches = training_batches(
            train,
            batch_size=config.train.batch_size,
            seed=config.seed,
            window_shards=config.data.window_shards,
            start_step=first_step,
        )
        task.fit(
            strategy.distribute_datasets_from_function(batches),
            steps_per_epoch=config.train.steps - first_step,
            callbacks=callbacks,
            verbose=0,
        )
        save(config.train.steps)
    figures = None if evaluator is None else evaluator.run()
    losses = [line["loss"] for line in folder.metrics() if "loss" in line]
    summary = {
        "steps": config.train.steps,
        "data": train.fingerprint,
        "parameters": parameters,
        "initial_loss": losses[0],
        "final_loss": losses[-1],
        "unigram_entropy": entropy,
        "eval": None if figures is None else figures.to_json(),
        "tokens_per_second": round(log.tokens / stopwatch.seconds()) if log.tokens else None,
    }
    folder.write_summary(summary)
    _report(summary, folder)
    return summary


def _restore(checkpoints: Checkpoints, state: dict[str, Any], train: Split, steps: int) -> int:
    """The updates that the newest checkpoint holds, read into `state`; 0 where there is none."""
    found = checkpoints.steps()
    if not found:
        return 0
    step = found[-1]
    if step > steps:
        raise UsageError(
            f"--train.steps is {steps}, but the run's newest checkpoint has {step} steps already"
        )
    metadata = checkpoints.metadata(step)
    if metadata["data"] != train.fingerprint:
        raise UsageError(
            f"{train.path}: not the data that the run's checkpoint of step {step} was trained on; "
            "use another --output_dir"
        )
    checkpoints.restore(step, **state)
    print(f"fit: continues after step {step}", file=sys.stderr)
    return step


def _report(summary: dict[str, Any], folder: RunFolder) -> None:
    text = f"fit: {summary['steps']} steps: training loss {summary['initial_loss']:.3f} → {summary['final_loss']:.3f}"
    if summary["eval"] is not None:
        text += f", validation loss {summary['eval']['loss']:.3f} accuracy {summary['eval']['accuracy']:.3f}"
    if summary["unigram_entropy"] is not None:
        text += f"; unigram entropy {summary['unigram_entropy']:.3f}"
    print(f"{text} ({folder.path})", file=sys.stderr)
