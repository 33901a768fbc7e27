"""Evaluates a model on tasks of EleutherAI's lm-eval, whose data are local unless downloads are allowed."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import TemplateError
from lm_eval.api.group import Group
from lm_eval.api.task import Task
from lm_eval.defaults import DEFAULT_OTHER_SEED, DEFAULT_RANDOM_SEED
from lm_eval.evaluator import evaluate
from lm_eval.tasks import TaskManager

from tokenmill_reader.console.spelling import suggestion
from tpu_trainer.scoring.harness_model import HarnessModel
from tpu_trainer.scoring.scorer import Scorer
from tpu_trainer.support.errors import UsageError

HARNESS = f"lm-eval {version('lm-eval')}"
_SUPPORTED = ("loglikelihood", "loglikelihood_rolling", "multiple_choice")
_YAML = (".yaml", ".yml")


@dataclass(frozen=True)
class LoadedTasks:
    """Tasks with their data."""

    tasks: dict[str, Task]
    groups: dict[str, Group]

    def evaluate(
        self, scorer: Scorer, *, shots: int | None, limit: int | None
    ) -> dict[str, dict[str, float]]:
        """Returns the figures of each task and group of tasks.

        Raises:
            UsageError: If a template of a task does not fit its data, or a continuation does not fit into the model.
        """
        for task in self.tasks.values():
            # As lm-eval's own command does: it leaves tasks alone that are defined without examples.
            defined = task.get_config("num_fewshot")
            if shots is not None and defined != 0:
                task.set_config(key="num_fewshot", value=shots)
            elif defined is None:
                task.set_config(key="num_fewshot", value=0)
            task.set_fewshot_seed(seed=DEFAULT_OTHER_SEED)
        try:
            results = evaluate(
                HarnessModel(scorer),
                {"tasks": self.tasks, "groups": self.groups},
                limit=limit,
                log_samples=False,
            )
        except TemplateError as error:
            raise UsageError(
                f"--tasks: a template of a task does not fit its data ({error}); correct the task's file"
            ) from error
        return {name: _figures(values) for name, values in results["results"].items() if _figures(values)}


def load_tasks(names: Sequence[str], *, folder: str | None, download: bool) -> LoadedTasks:
    """Loads tasks and their data.

    Paths of data in tasks' files are relative to `folder`. So are names of datasets on the hub: a copy of
    Rowan/hellaswag is in folder/Rowan/hellaswag. Without it, those in a file given by its path are relative to its own.

    Args:
        names: Names of tasks, groups or tags, or paths of YAML files.
        folder: With further tasks and data; None: no further tasks.
        download: Whether data may be downloaded, so the error does not explain how to.

    Raises:
        UsageError: If a task is unknown, its data are missing or damaged, or it needs generated text.
    """
    if folder is not None and not Path(folder).is_dir():
        raise UsageError(f"--task_folder: {folder}: no such folder")
    manager = TaskManager(include_path=None if folder is None else str(Path(folder).resolve()))
    specs = [_spec(name, manager) for name in names]
    # Some tasks choose their items at random: as lm-eval's own command does.
    random.seed(DEFAULT_RANDOM_SEED)
    np.random.seed(DEFAULT_OTHER_SEED)  # noqa: NPY002
    tasks, groups = {}, {}
    for name, spec in zip(names, specs, strict=True):
        with _working_folder(folder or (Path(spec).parent if Path(spec).is_absolute() else Path.cwd())):
            try:
                loaded = manager.load([spec])
            except Exception as error:  # of a task's file, its functions or its data: there are many types
                raise UsageError(_message(name, spec, manager, error, download=download)) from error
            for task in loaded["tasks"].values():
                if task.OUTPUT_TYPE not in _SUPPORTED:
                    raise UsageError(
                        f"--tasks {name}: the task {task.task_name} is of type {task.OUTPUT_TYPE}, which needs "
                        "generated text; only likelihoods are computed here: leave it out, or use lm-eval's own model "
                        "of type hf with the exported folder"
                    )
            tasks |= loaded["tasks"]
            groups |= loaded["groups"]
    return LoadedTasks(tasks, groups)


def _spec(name: str, manager: TaskManager) -> str:
    """Returns a task's name, or the absolute path of its file."""
    if name in manager.task_index:
        return name
    if name.endswith(_YAML):
        if Path(name).is_file():
            return str(Path(name).resolve())
        raise UsageError(f"--tasks: {name}: no such file")
    meant = suggestion(name, manager.all_tasks)
    raise UsageError(
        f"--tasks: {name!r} is no task of {HARNESS}{meant}; give tasks of your own by --task_folder or the path of a "
        "YAML file, and minimal pairs by the path of a .jsonl file"
    )


@contextmanager
def _working_folder(folder: str | Path) -> Iterator[None]:
    """Context in which relative paths are in `folder`: datasets takes a local folder of a hub's name first."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def _message(name: str, spec: str, manager: TaskManager, error: Exception, *, download: bool) -> str:
    """Returns why a task cannot be loaded, and which of its datasets to download."""
    reason = f"--tasks {name}: cannot be loaded: {type(error).__name__}: {' '.join(str(error).split())}"
    missing = {path: name for path, name in _datasets_of(spec, manager) if not Path(path).exists()}
    if download or not missing:
        return reason
    commands = "; ".join(
        f"hf download --repo-type dataset {path} --local-dir TASK_FOLDER/{path}" for path in missing
    )
    names = ", ".join(path if name is None else f"{path} ({name})" for path, name in missing.items())
    return (
        f"{reason}. Data that are not on this machine: {names}. Where the hub can be reached, --download true gets "
        f"them; else get them elsewhere, `{commands}`, and give --task_folder TASK_FOLDER"
    )


def _datasets_of(name: str, manager: TaskManager) -> Iterator[tuple[str, str | None]]:
    """Yields the hub's name of the dataset of a task, or of each of a group or tag, and of its configuration."""
    entry = manager.task_index.get(name)
    if entry is None:
        return
    config = entry.cfg or {}
    children = config.get("task") if isinstance(config.get("task"), list) else sorted(entry.tags)
    if entry.kind.name in ("GROUP", "TAG"):
        for child in children:
            yield from _datasets_of(child if isinstance(child, str) else child.get("task", ""), manager)
    elif (path := config.get("dataset_path")) and "data_files" not in (config.get("dataset_kwargs") or {}):
        yield path, config.get("dataset_name")


def _figures(values: dict[str, Any]) -> dict[str, float]:
    """Returns lm-eval's figures, such as {"acc,none": 0.5}, without the name of a filter that does nothing."""
    return {
        key.replace(",none", ""): float(value)
        for key, value in values.items()
        if "," in key and isinstance(value, int | float)
    }
