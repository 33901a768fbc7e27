"""The README.md of an exported model: usage, training data, results and configuration."""

from __future__ import annotations

import dataclasses
from typing import Any

import yaml

from tpu_trainer.config import FitConfig
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.runs.evaluations import Evaluation, figures_of, scores_at
from tpu_trainer.runs.run_folder import RunFolder

_TASKS = {"mlm": "fill-mask", "clm": "text-generation"}
_METRICS = ("loss", "perplexity", "accuracy", "bits_per_byte")
_SETTINGS = {"shots": "shots", "limit": "items only"}
# Paths and names of machines, and values that the card shows elsewhere.
_NOT_SHOWN = (
    "output_dir",
    "data",
    "profile",
    "strategy",
    "mesh",
    "tpu",
    "hub_model_id",
    "hub_private",
    "track",
)


def model_card(
    config: FitConfig, *, folder: RunFolder, step: int, parameters: int, vocabulary: Vocabulary
) -> str:
    """Returns the card as Markdown with the metadata that the Hub reads.

    Args:
        config: The run's configuration.
        folder: The run folder, which has the training data's description and the metrics.
        step: The checkpoint's step.
        parameters: Number of the model's parameters.
        vocabulary: The tokenizer's vocabulary.
    """
    task = _TASKS[config.objective]
    data = folder.data()
    training, evaluation = folder.figures_at(step)
    scores = scores_at(folder, step)
    metadata = _metadata(config, task, data, evaluation, scores)
    text = "---\n" + yaml.safe_dump(metadata, sort_keys=False) + "---\n\n"
    text += f"# {config.model.type}, {parameters:,} parameters\n\n"
    objective = {"mlm": "masked", "clm": "causal"}[config.objective]
    start = "from scratch" if config.model.init_from is None else f"from {_base_name(config.model.init_from)}"
    text += (
        f"A {objective} language model with a vocabulary of {vocabulary.size:,} tokens, trained {start} for "
        f"{step:,} steps of {config.train.batch_size:,} rows.\n\n"
    )
    text += _usage(task)
    if data:
        text += "## Data\n\n" + _data_table(data) + "\n"
    text += "## Results\n\n" + _results(training, evaluation) + "\n"
    if scores:
        text += _scores_table(scores) + "\n"
    shown = {name: value for name, value in dataclasses.asdict(config).items() if name not in _NOT_SHOWN}
    if config.model.init_from is not None:
        shown["model"]["init_from"] = _base_name(config.model.init_from)
    text += "## Configuration\n\n```yaml\n" + yaml.safe_dump(shown, sort_keys=False) + "```\n"
    return text


def _base_name(path: str) -> str:
    """Returns the last component of a path, because the card must not disclose the others."""
    return path.rstrip("/").rsplit("/", 1)[-1]


def _metadata(
    config: FitConfig,
    task: str,
    data: list[dict[str, Any]],
    evaluation: dict[str, Any] | None,
    scores: list[Evaluation],
) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "library_name": "transformers",
        "pipeline_tag": task,
        "tags": [config.model.type, "tpu_trainer"],
    }
    names = {entry["use"]: entry["name"] for entry in data}
    results = [
        {
            "task": {"type": task},
            "dataset": {"name": names[use], "type": names[use]},
            "metrics": [{"type": name, "value": figures[name]} for name in _METRICS if figures.get(name)],
        }
        for use, figures in _evaluated_splits(evaluation).items()
        if use in names
    ]
    # A score on a part of the items would mislead beside those of other models.
    results += [
        {
            "task": {"type": task},
            "dataset": {"name": name, "type": name}
            | ({} if each["shots"] is None else {"args": {"num_few_shot": each["shots"]}}),
            "metrics": [{"type": figure, "value": value} for figure, value, _ in figures_of(figures)],
        }
        for each in scores
        if each["limit"] is None
        for name, figures in each["tasks"].items()
    ]
    if results:
        metadata["model-index"] = [{"name": config.model.type, "results": results}]
    return metadata


def _evaluated_splits(evaluation: dict[str, Any] | None) -> dict[str, dict[str, Any]]:
    """Returns the use of each validation split in data.json → its figures."""
    if evaluation is None:
        return {}
    if "splits" not in evaluation:
        return {"validation": evaluation}
    return {f"validation {name}": figures for name, figures in evaluation["splits"].items()}


def _usage(task: str) -> str:
    """Returns the section that shows how to load the model."""
    call = "pipe(f'… {pipe.tokenizer.mask_token} …')" if task == "fill-mask" else "pipe('…')"
    return (
        "## Use\n\n```python\nfrom transformers import pipeline\n\n"
        f'pipe = pipeline("{task}", model="…")  # this folder or repository\n{call}\n```\n\n'
    )


def _data_table(data: list[dict[str, Any]]) -> str:
    lines = ["| data | use | rows | tokens | documents | tokenized from |", "|---|---|---|---|---|---|"]
    for entry in data:
        use = entry["use"] if entry["share"] is None else f"{entry['use']}, {entry['share']:.1%} of the rows"
        sources = ", ".join(entry["inputs"]) or "–"
        if further := entry.get("further_inputs"):
            sources += f" and {further:,} more"
        numbers = [f"{entry[name]:,}" if entry[name] else "–" for name in ("rows", "tokens", "documents")]
        lines.append("| " + " | ".join([entry["name"], use, *numbers, sources]) + " |")
    lines.append(f"\nRows hold {data[0]['max_length']} tokens.")
    return "\n".join(lines) + "\n"


def _results(training: dict[str, Any] | None, evaluation: dict[str, Any] | None) -> str:
    splits = _evaluated_splits(evaluation) or {"validation": {}}
    columns = {"training, last steps": training or {}} | splits
    lines = [f"| figure | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for name in _METRICS:
        values = [figures.get(name) for figures in columns.values()]
        if any(value is not None for value in values):
            cells = ["–" if value is None else f"{value:.4f}" for value in values]
            lines.append(f"| {name.replace('_', ' ')} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n\nLosses are in nats per predicted token.\n"


def _scores_table(scores: list[Evaluation]) -> str:
    lines = ["| task | figure | value | standard error | settings |", "|---|---|---|---|---|"]
    for each in scores:
        settings = [each["harness"] or "minimal pairs", each["precision"]]
        settings += [f"{each[name]} {unit}" for name, unit in _SETTINGS.items() if each[name] is not None]
        for name, figures in each["tasks"].items():
            lines += [
                f"| {name} | {figure} | {value:.4f} | {'–' if error is None else f'{error:.4f}'} | "
                f"{', '.join(settings)} |"
                for figure, value, error in figures_of(figures)
            ]
    return "\n".join(lines) + "\n"
