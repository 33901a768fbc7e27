"""What a run reads, before it does: the rows, tokens and epochs of each source in each stage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from tokenmill_reader import Mixture, Order
from tpu_trainer.config import FitConfig
from tpu_trainer.data.mixture import source_names, tokens_per_row
from tpu_trainer.support.tables import table_lines

_MANY_EPOCHS = 4
"""More repetitions add less and less: Muennighoff et al., "Scaling Data-Constrained Language Models" (2023)."""


@dataclass(frozen=True, kw_only=True)
class PlannedStage:
    """The steps of a stage, from `first_step`, counted from 0, to `end`."""

    first_step: int
    end: int
    rows: np.ndarray
    """The rows of each source, int64[sources]."""


class DataPlan:
    """The data of a run."""

    def __init__(self, config: FitConfig, data: Mixture) -> None:
        """Plans the run of `config` on `data`."""
        train = config.train
        micro_batch = train.batch_size // train.accumulation
        order = Order(data, seed=config.seed, batch_size=micro_batch, window=config.data.window_shards)
        starts = [train.steps_for(stage.first_row) for stage in data.stages]
        self.unreached = [start for start in starts if start >= train.steps]
        """The first steps of stages that begin after the last step."""
        bounds = [*(start for start in starts if start < train.steps), train.steps]
        read = [order.rows_read(train.rows_before(step) // micro_batch) for step in bounds]
        self.names = source_names(data)
        self.stages = [
            PlannedStage(first_step=start, end=end, rows=after - before)
            for (start, before), (end, after) in pairwise(zip(bounds, read, strict=True))
        ]
        self._sizes = np.array([len(dataset) for dataset in data.datasets])
        self._tokens_per_row = np.array([tokens_per_row(dataset) for dataset in data.datasets])

    def to_json(self) -> dict[str, Any]:
        """Returns the figures of each stage and of all."""
        rows = sum(stage.rows for stage in self.stages)
        return {
            "tokens": int(self._tokens(rows).sum()),
            "stages": [
                {"first_step": stage.first_step, "end_step": stage.end, "sources": self._sources(stage.rows)}
                for stage in self.stages
            ],
            "sources": self._sources(rows),
        }

    def _sources(self, rows: np.ndarray) -> dict[str, dict[str, float]]:
        epochs, tokens = rows / self._sizes, self._tokens(rows)
        return {
            name: {"rows": int(rows[number]), "tokens": int(tokens[number]), "epochs": float(epochs[number])}
            for number, name in enumerate(self.names)
        }

    def _tokens(self, rows: np.ndarray) -> np.ndarray:
        return np.round(rows * self._tokens_per_row).astype(np.int64)

    def lines(self) -> Iterator[str]:
        """Yields a table of the stages and their sources, and a line for each source that is read many times."""
        total = sum(stage.rows for stage in self.stages)
        table = [("steps", "source", "rows", "share", "tokens", "epochs", "in all")]
        read = np.zeros_like(self._sizes)
        for stage in self.stages:
            read = read + stage.rows
            steps = f"{stage.first_step + 1:,} to {stage.end:,}"
            table += self._table_rows(steps, stage.rows, read)
        if len(self.stages) > 1:
            table += self._table_rows("all", total, total)
        yield from table_lines(table, left=2)
        for step in self.unreached:
            yield f"the stage from step {step:,} on begins after the last step"
        for name, epochs in zip(self.names, (total / self._sizes).tolist(), strict=True):
            if epochs > _MANY_EPOCHS:
                yield (
                    f"{name} is read {epochs:,.1f} times: repeated more than about {_MANY_EPOCHS} times, data adds "
                    "less and less; use more of it, fewer --train.steps or a lower weight"
                )

    def _table_rows(self, steps: str, rows: np.ndarray, read: np.ndarray) -> Iterator[tuple[str, ...]]:
        """Yields the cells of the sources that are read, of which `read` rows are read until then."""
        tokens, is_first = self._tokens(rows), True
        for number in np.flatnonzero(rows).tolist():
            yield (
                steps if is_first else "",
                self.names[number],
                f"{rows[number]:,}",
                f"{rows[number] / rows.sum():.1%}",
                f"{tokens[number]:,}",
                f"{rows[number] / self._sizes[number]:,.2f}",
                f"{read[number] / self._sizes[number]:,.2f}",
            )
            is_first = False
