"""The evaluate verb: evaluates a run's newest checkpoint on a whole split."""

from __future__ import annotations

import json
from dataclasses import replace

from tpu_trainer import files
from tpu_trainer.config import EvaluateConfig
from tpu_trainer.data.dataset import open_split
from tpu_trainer.elapsed import elapsed
from tpu_trainer.errors import UsageError
from tpu_trainer.runs.run_folder import RunFolder


def main(config: EvaluateConfig) -> None:
    """Prints the figures as JSON and writes them to a file.

    Raises:
        UsageError: If run, split and options are inconsistent.
    """
    folder = RunFolder(config.run)
    run = folder.config()
    data = config.data or run.data.validation
    if data is None:
        raise UsageError(f"{config.run}: the run has no validation split; set --data")
    split = open_split(data, tokenizer=folder.tokenizer)
    # TensorFlow takes seconds to import: the checks above come first.
    with elapsed("evaluate: starting TensorFlow"):
        from tpu_trainer.data.faults import check_records
        from tpu_trainer.data.vocabulary import load_vocabulary
        from tpu_trainer.runs.checkpoint import Checkpoints
        from tpu_trainer.training.build import build_task
        from tpu_trainer.training.evaluation import Evaluator
        from tpu_trainer.training.strategy import build_strategy
        from tpu_trainer.training.tf_executor import TensorFlowExecutor

    checkpoints = Checkpoints(folder.checkpoints)
    step = checkpoints.latest()
    max_length = checkpoints.metadata(step)["max_length"]
    if split.max_length != max_length:
        raise UsageError(
            f"{data}: rows of {split.max_length} tokens; the run was trained on rows of {max_length}"
        )
    vocabulary = load_vocabulary(split, run.objective)
    check_records(split, vocabulary)
    strategy = build_strategy(config.strategy)
    with elapsed("evaluate: building the model"), strategy.scope():
        # Build only the weights to evaluate, not a second set for the average.
        alone = replace(run, optimizer=replace(run.optimizer, ema=None))
        task = build_task(alone, vocabulary=vocabulary, max_length=max_length, strategy=strategy)
    checkpoints.restore(step, **{run.optimizer.evaluated: task.network})
    figures = Evaluator(
        TensorFlowExecutor(task, strategy),
        split=split,
        vocabulary=vocabulary,
        batch_size=config.batch_size or run.train.evaluation_batch_size or run.train.batch_size,
        batch_size_option="batch_size",
    ).run()
    text = json.dumps({"step": step, "data": data} | figures.to_json(), indent=1)
    print(text)
    files.write_text(config.output or files.join(config.run, "evaluation.json"), text + "\n")
