"""The evaluate verb: evaluates a run's newest checkpoint on whole splits."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from tokenmill_reader import Dataset
from tokenmill_reader.console.elapsed import elapsed
from tpu_trainer.config import EvaluateConfig, FitConfig
from tpu_trainer.config.data import named_folders
from tpu_trainer.data.dataset import open_split
from tpu_trainer.devices.opening import met_processes, open_devices
from tpu_trainer.runs.run_folder import RunFolder
from tpu_trainer.support import files
from tpu_trainer.support.errors import NotSavedError, UsageError

if TYPE_CHECKING:
    from tpu_trainer.data.vocabulary import Vocabulary
    from tpu_trainer.devices.executor import StepExecutor
    from tpu_trainer.devices.pjrt.peers import Peers
    from tpu_trainer.runs.checkpoint import Checkpoints


def main(config: EvaluateConfig) -> None:
    """Prints the figures as JSON and writes them to a file.

    Raises:
        UsageError: If run, split and options are inconsistent.
        NotSavedError: If the file cannot be written.
    """
    with met_processes(config, run={"--run": config.run}) as peers:
        _evaluate(replace(config, mesh=config.mesh.without_processes()), peers)


def _evaluate(config: EvaluateConfig, peers: Peers) -> None:
    folder = RunFolder(config.run)
    run = folder.config()
    folders = named_folders(config.data) or run.data.validation_folders
    if not folders:
        raise UsageError(f"{config.run}: the run has no validation split; set --data")
    splits = {name: open_split(path) for name, path in folders.items()}
    # TensorFlow takes seconds to import: the checks above come first.
    with elapsed("evaluate: starting TensorFlow"):
        from tpu_trainer.data.batches import check_records
        from tpu_trainer.data.vocabulary import load_vocabulary
        from tpu_trainer.runs.checkpoint import Checkpoints, WriteErrors
        from tpu_trainer.training.evaluation import Evaluator, evaluate_all

    checkpoints = Checkpoints(folder.checkpoints)
    step = checkpoints.latest()
    max_length = checkpoints.metadata(step)["max_length"]
    first = next(iter(splits.values()))
    for split in splits.values():
        if split.max_length != max_length:
            raise UsageError(
                f"{split.path}: rows of {split.max_length} tokens; the run was trained on rows of {max_length}"
            )
    batch_size = config.batch_size or run.train.evaluation_batch_size or run.train.batch_size
    peers.check_same(
        {
            "the split": {name: split.fingerprint for name, split in splits.items()},
            "the step of the checkpoint": step,
            "--batch_size": batch_size,
        }
        | {f"--mesh.{name}": value for name, value in asdict(config.mesh).items()},
        remedy="start all with the same options, split and run",
    )
    vocabulary = load_vocabulary(first, run.objective, tokenizer=folder.tokenizer)
    for split in splits.values():
        check_records(split, vocabulary)
    executor = _executor(
        config, run, checkpoints=checkpoints, step=step, split=first, vocabulary=vocabulary, peers=peers
    )
    evaluators = {
        name: Evaluator(
            executor,
            split=split,
            vocabulary=vocabulary,
            batch_size=batch_size,
            batch_size_option="batch_size",
        )
        for name, split in splits.items()
    }
    figures = evaluate_all(evaluators)
    if peers.is_first:
        text = json.dumps(
            {"step": step, "data": config.data or run.data.validation} | figures.to_json(), indent=1
        )
        print(text)
        path = config.output or files.join(config.run, "evaluation.json")
        try:
            files.write_text(path, text + "\n")
        except WriteErrors as error:
            raise NotSavedError(f"{path}: cannot be written ({error}); set another --output") from error


def _executor(
    config: EvaluateConfig,
    run: FitConfig,
    *,
    checkpoints: Checkpoints,
    step: int,
    split: Dataset,
    vocabulary: Vocabulary,
    peers: Peers,
) -> StepExecutor:
    """Returns an executor with the weights of the checkpoint of `step`."""
    from tpu_trainer.training.build import build_task

    part = run.optimizer.evaluated
    run = _for_evaluation(run, config)
    devices = open_devices(run, peers)
    with elapsed("evaluate: building the model"), devices.scope():
        task = build_task(
            run,
            vocabulary=vocabulary,
            max_length=split.max_length,
            target=devices.target,
            initial=devices.initial,
        )
    executor = devices.executor(task, state={"network": task.objective.model.network.weights})
    # Of the average, the checkpoint has the same names in another part.
    names = {name.replace("network/", f"{part}/", 1): name for name in executor.state_shapes()}
    shapes = {saved: executor.state_shapes()[name] for saved, name in names.items()}
    executor.load_state((names[saved], value) for saved, value in checkpoints.read(step, shapes))
    return executor


def _for_evaluation(run: FitConfig, config: EvaluateConfig) -> FitConfig:
    """Returns the run's configuration for the devices of `config`, without what only training needs."""
    # The kernel is only for training.
    train = replace(run.train, attention_kernel=False, deterministic=False)
    # Only the weights to evaluate, not a second set for the average.
    optimizer = replace(run.optimizer, ema=None)
    return replace(run, strategy=config.strategy, mesh=config.mesh, train=train, optimizer=optimizer)
