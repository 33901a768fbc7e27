"""The figures of runs, side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tokenmill_reader.charts import short
from tpu_trainer.comparison.compared_run import TRAINING, ComparedRun
from tpu_trainer.comparison.differences import ABSENT, TOKENIZERS_DIFFER, cautions
from tpu_trainer.runs.evaluations import figures_of
from tpu_trainer.runs.time_spent import KINDS, goodput


@dataclass(frozen=True, kw_only=True)
class Row:
    """A figure of each run."""

    name: str
    values: Sequence[float | None]
    """None: the run does not have it."""
    format: Callable[[float], str]
    better: str | None = None
    """Which is better: low, high, or neither."""
    errors: Sequence[float | None] | None = None
    """The standard error of each value."""

    @property
    def cells(self) -> list[str]:
        """The values as text."""
        errors = self.errors or [None] * len(self.values)
        return [
            ABSENT
            if value is None
            else self.format(value) + ("" if error is None else f" ± {self.format(error)}")
            for value, error in zip(self.values, errors, strict=True)
        ]

    @property
    def best(self) -> list[bool]:
        """Whether each value is the best one, which none is if all are equal."""
        known = [value for value in self.values if value is not None]
        if self.better is None or len(set(known)) < 2:
            return [False] * len(self.values)
        best = min(known) if self.better == "low" else max(known)
        return [value == best for value in self.values]


def key_figures(runs: Sequence[ComparedRun]) -> list[Row]:
    """Returns sizes, losses and speed; only figures that a run has."""

    def row(
        name: str, value: Callable[[ComparedRun], float | None], form: str, better: str | None = None
    ) -> Row:
        formatted = short if form == "short" else form.format
        return Row(name=name, values=[value(run) for run in runs], format=formatted, better=better)

    reasons = cautions(runs)
    rows = [
        row("parameters", lambda run: run.parameters, "{:,}"),
        row("steps", lambda run: run.step, "{:,}"),
        row("tokens", lambda run: run.total("tokens"), "short"),
        row("FLOPs", lambda run: run.total("flops"), "short"),
        row("training loss", lambda run: run.last(TRAINING, "loss"), "{:.4f}"),
    ]
    for split in validation_splits(runs):
        for figure, better in (("loss", "low"), ("accuracy", "high"), ("bits_per_byte", "low")):
            name = f"{split} {figure.replace('_', ' ')}"
            fair = not reasons or (reasons == [TOKENIZERS_DIFFER] and figure == "bits_per_byte")
            rows.append(
                row(name, lambda run, s=split, f=figure: run.last(s, f), "{:.4f}", better if fair else None)
            )
        lowest_better = None if reasons else "low"
        rows.append(
            row(f"{split} lowest loss", lambda run, s=split: _lowest(run, s), "{:.4f}", lowest_better)
        )
    rows += [
        row("tokens per second", lambda run: run.typical("tokens_per_second"), "{:,.0f}", "high"),
        row("seconds per step", lambda run: run.typical("step_seconds"), "{:.4g}"),
        row("waiting for input", _share, "{:.1%}", "low"),
        row("MFU", lambda run: run.typical("mfu"), "{:.1%}", "high"),
        row("goodput", lambda run: goodput(run.spent) if run.spent else None, "{:.1%}", "high"),
    ]
    return [row for row in rows if any(value is not None for value in row.values)]


def score_rows(runs: Sequence[ComparedRun]) -> list[Row]:
    """Returns a row for each figure of each task."""
    scores = [
        {
            (task, name): (value, error)
            for task, figures in run.scores.items()
            for name, value, error in figures_of(figures)
            if math.isfinite(value)
        }
        for run in runs
    ]
    return [
        Row(
            name=" ".join(key),
            values=[each.get(key, (None, None))[0] for each in scores],
            errors=[each.get(key, (None, None))[1] for each in scores],
            format="{:.4g}".format,
            better=_better(key[1]),
        )
        for key in dict.fromkeys(key for each in scores for key in each)
    ]


def time_rows(runs: Sequence[ComparedRun]) -> list[Row]:
    """Returns the seconds of each kind."""
    return [
        Row(name=kind, values=[run.spent.get(kind) for run in runs], format="{:,.1f} s".format)
        for kind in KINDS
        if any(run.spent.get(kind) for run in runs)
    ]


def validation_splits(runs: Sequence[ComparedRun]) -> list[str]:
    """Returns the names of all runs' validation splits."""
    return list(dict.fromkeys(split for run in runs for split in run.splits))


def _better(metric: str) -> str | None:
    if "perplexity" in metric or "bits_per_byte" in metric:
        return "low"
    return "high" if metric.startswith(("acc", "exact", "f1", "mc")) else None


def _lowest(run: ComparedRun, split: str) -> float | None:
    return min((value for _, value in run.curve(split)), default=None)


def _share(run: ComparedRun) -> float | None:
    """Returns the share of a step's seconds in which it waits for input."""
    seconds, waited = run.typical("step_seconds"), run.typical("input_wait_seconds")
    return waited / seconds if seconds and waited is not None else None
