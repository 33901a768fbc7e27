"""The scores of a run's checkpoints on tasks: evaluations.jsonl in its folder.

A line has the `step` of the checkpoint, `tasks`: {name: {figure: value}}, where the standard error of `acc` is
`acc_stderr`, and the settings: `shots` and `limit` (null: those of the tasks, all items), `harness` ("lm-eval 0.4.13";
null: this program's own tasks) and `precision`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from tpu_trainer.runs.run_folder import RunFolder
from tpu_trainer.support import files

Evaluation = dict[str, Any]
_STDERR = "_stderr"


def record_evaluations(folder: RunFolder, evaluations: Sequence[Evaluation]) -> None:
    """Adds lines to evaluations.jsonl. Scores of the same step, task and settings are replaced.

    The whole file is written, atomically. Two processes that do so in the same moment would lose the line of one.

    Raises:
        UsageError: If the file is damaged.
        WriteErrors: If it cannot be written.
    """
    records = folder.evaluations()
    for new in evaluations:
        for earlier in records:
            if _settings(earlier) == _settings(new):
                earlier["tasks"] = {
                    name: each for name, each in earlier["tasks"].items() if name not in new["tasks"]
                }
        records.append(new)
    lines = "".join(json.dumps(record) + "\n" for record in records if record["tasks"])
    files.write_text(folder.evaluations_log, lines)


def _settings(evaluation: Evaluation) -> Evaluation:
    return {name: value for name, value in evaluation.items() if name != "tasks"}


def scores_at(folder: RunFolder, step: int) -> list[Evaluation]:
    """Returns the evaluations of the checkpoint of `step`; raises UsageError if the file is damaged."""
    return [record for record in folder.evaluations() if record["step"] == step]


def figures_of(figures: dict[str, float]) -> Iterator[tuple[str, float, float | None]]:
    """Yields the name of each figure of a task, its value and its standard error, if there is one.

    >>> list(figures_of({"acc": 0.5, "acc_stderr": 0.1, "perplexity": 20.0}))
    [('acc', 0.5, 0.1), ('perplexity', 20.0, None)]
    """
    for name, value in figures.items():
        if not name.endswith(_STDERR):
            yield name, value, figures.get(name + _STDERR)
