"""The evaluate verb: evaluates a run's checkpoint on whole splits, or a model on tasks."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from tokenmill_reader.console.elapsed import elapsed
from tpu_trainer.config import EvaluateConfig, ObjectiveName
from tpu_trainer.config.data import named_folders
from tpu_trainer.data.dataset import open_split
from tpu_trainer.data.minimal_pairs import Pair, read_pairs
from tpu_trainer.devices.opening import met_processes
from tpu_trainer.runs.run_folder import RunFolder
from tpu_trainer.support import files, quiet
from tpu_trainer.support.errors import NotSavedError, UsageError
from tpu_trainer.support.extras import require_lm_eval

if TYPE_CHECKING:
    from tpu_trainer.devices.pjrt.peers import Peers
    from tpu_trainer.scoring.harness import LoadedTasks

_SAME_OPTIONS = ("run", "checkpoint", "model", "tasks", "shots", "limit", "precision")
"""Processes that evaluate together must have the same values of these."""
_PAIRS = ".jsonl"


def main(config: EvaluateConfig) -> None:
    """Prints the figures as JSON and writes them to a file.

    Raises:
        UsageError: If model, split, tasks and options are inconsistent.
        NotSavedError: If the file cannot be written.
    """
    options = {f"--{name}": getattr(config, name) for name in _SAME_OPTIONS}
    run = {name: str(value) for name, value in options.items() if value is not None}
    with met_processes(config, run=run) as peers:
        config = replace(config, mesh=config.mesh.without_processes())
        if config.tasks is None:
            _evaluate_splits(config, peers)
        else:
            _evaluate_tasks(config, peers)


def _evaluate_splits(config: EvaluateConfig, peers: Peers) -> None:
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
        from tpu_trainer.runs.checkpoint import Checkpoints
        from tpu_trainer.runs.chosen_step import chosen_step
        from tpu_trainer.scoring.models import run_executor
        from tpu_trainer.training.evaluation import Evaluator, evaluate_all

    checkpoints = Checkpoints(folder.checkpoints, channel=peers.channel())
    step = chosen_step(checkpoints, config.checkpoint)
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
    executor = run_executor(
        config,
        run,
        checkpoints=checkpoints,
        step=step,
        max_length=max_length,
        vocabulary=vocabulary,
        peers=peers,
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
        _write(config.output or files.join(config.run, "evaluation.json"), text)


def _write(path: str, text: str) -> None:
    from tpu_trainer.runs.checkpoint import WriteErrors

    try:
        files.write_text(path, text + "\n")
    except WriteErrors as error:
        raise NotSavedError(f"{path}: cannot be written ({error}); set another --output") from error


@dataclass(frozen=True)
class _Tasks:
    """What --tasks names."""

    pairs: dict[str, list[Pair]]
    """The minimal pairs of each file, by its name without folder and ending."""
    harness: LoadedTasks | None
    """The tasks of lm-eval."""


def _evaluate_tasks(config: EvaluateConfig, peers: Peers) -> None:
    tasks = _load_tasks(config)
    # TensorFlow takes seconds to import: the checks above come first.
    with elapsed("evaluate: starting TensorFlow"):
        from tpu_trainer.runs.checkpoint import WriteErrors
        from tpu_trainer.runs.evaluations import record_evaluations
        from tpu_trainer.scoring.minimal_pairs import score_pairs
        from tpu_trainer.scoring.models import open_model
        from tpu_trainer.scoring.scorer import Scorer

        quiet.silence_abseil()
    model = open_model(config, peers)
    scorer = Scorer(model, peers)
    evaluations = []
    common = {"step": model.step, "limit": config.limit, "precision": model.precision}
    if tasks.pairs:
        scores = {name: score_pairs(pairs, scorer) for name, pairs in tasks.pairs.items()}
        evaluations.append(common | {"tasks": scores, "shots": None, "harness": None})
    if tasks.harness is not None:
        from tpu_trainer.scoring.harness import HARNESS

        scores = tasks.harness.evaluate(scorer, shots=config.shots, limit=config.limit)
        evaluations.append(common | {"tasks": scores, "shots": config.shots, "harness": HARNESS})
    if not peers.is_first:
        return
    text = "\n".join(json.dumps(evaluation, indent=1) for evaluation in evaluations)
    print(text)
    if config.output is not None:
        _write(config.output, text)
    if config.run is not None:
        folder = RunFolder(config.run)
        try:
            record_evaluations(folder, evaluations)
        except WriteErrors as error:
            raise NotSavedError(f"{folder.evaluations_log}: cannot be written ({error})") from error


def _load_tasks(config: EvaluateConfig) -> _Tasks:
    """Reads tasks and their data.

    Raises:
        UsageError: If a task is unknown, its data are missing or damaged, or the model cannot do it.
    """
    names = [name.strip() for name in config.tasks.split(",")]
    files_of_pairs = [name for name in names if name.endswith(_PAIRS)]
    pairs = {
        name.rsplit("/", 1)[-1].removesuffix(_PAIRS): read_pairs(name, limit=config.limit)
        for name in files_of_pairs
    }
    if len(pairs) < len(files_of_pairs):
        raise UsageError(
            f"--tasks {config.tasks}: two files have the same name, which is that of their scores; rename one"
        )
    others = [name for name in names if name not in files_of_pairs]
    if not others:
        return _Tasks(pairs, None)
    require_lm_eval(",".join(others))
    if not config.download:
        # The libraries read it when they are imported, and transformers imports huggingface_hub.
        os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_EVALUATE_OFFLINE": "1"}
    if _objective(config) != "clm":
        raise UsageError(
            f"--tasks {others[0]}: lm-eval's tasks need a causal model; masked models are evaluated on minimal pairs, "
            "--tasks FILE.jsonl"
        )
    with elapsed("evaluate: loading lm-eval's tasks"):
        from tpu_trainer.scoring.harness import load_tasks

        return _Tasks(pairs, load_tasks(others, folder=config.task_folder, download=config.download))


def _objective(config: EvaluateConfig) -> ObjectiveName:
    if config.run is not None:
        return RunFolder(config.run).config().objective
    from tpu_trainer.exports.exported import read_family

    return read_family(config.model).objective
