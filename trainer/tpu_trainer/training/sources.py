"""The figures of each source of a mixture: what it has learned of, how much it has read, and how often."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tpu_trainer.data.batches import RowStream
from tpu_trainer.data.mixture import source_names, tokens_per_row
from tpu_trainer.step.results import SourceSums


class SourceFigures:
    """Counts the tokens of each source over a run, also if it is continued."""

    def __init__(self, rows: RowStream, *, records: Sequence[dict[str, Any]], first_step: int) -> None:
        """
        Args:
            rows: The training data.
            records: The log until now. A source that it does not name has the mean tokens of the rows that were read.
            first_step: Steps made before this process.
        """
        self._rows = rows
        datasets = rows.data.datasets
        self.names = source_names(rows.data)
        logged = {name: each for record in records for name, each in record.get("sources", {}).items()}
        # The sums of the devices are those since the last line of figures, also in a process that continues.
        steps = [record["step"] for record in records if "loss" in record]
        self._read = rows.rows_read(steps[-1] if steps else first_step).tolist()
        self._tokens = [
            logged[name]["tokens"] if name in logged else round(count * tokens_per_row(dataset))
            for name, count, dataset in zip(self.names, self._read, datasets, strict=True)
        ]
        self._losses = {name: each["loss"] for name, each in logged.items()}

    def after(self, step: int, sums: Sequence[SourceSums]) -> dict[str, dict[str, float]]:
        """Returns the figures of the sources with targets in `sums`, those since the last call; none for one source."""
        figures = {}
        read, before = self._rows.rows_read(step).tolist(), self._read
        self._read = read
        for number, (name, each) in enumerate(zip(self.names, sums, strict=False)):
            rows = read[number] - before[number]
            self._tokens[number] += rows * self._rows.data.max_length - int(each.padding)
            if each.targets:
                self._losses[name] = each.loss / each.targets
                figures[name] = {
                    "loss": self._losses[name],
                    "accuracy": each.correct / each.targets,
                    "tokens": self._tokens[number],
                    "epochs": self._epochs(step)[number],
                }
        return figures

    def tokens(self, step: int) -> int:
        """Returns the tokens of all sources after `step` updates: with one, its rows times their mean."""
        if len(self.names) > 1:
            return sum(self._tokens)
        [rows] = self._rows.rows_read(step).tolist()
        return round(rows * tokens_per_row(self._rows.data.datasets[0]))

    def summary(self, step: int) -> dict[str, dict[str, Any]] | None:
        """Returns the tokens, rows, epochs and last loss of each source after `step` updates; None for one source."""
        if len(self.names) == 1:
            return None
        rows = self._rows.rows_read(step).tolist()
        return {
            name: {
                "rows": rows[number],
                "tokens": self._tokens[number],
                "epochs": self._epochs(step)[number],
                "final_loss": self._losses.get(name),
            }
            for number, name in enumerate(self.names)
        }

    def _epochs(self, step: int) -> list[float]:
        datasets = self._rows.data.datasets
        counts = self._rows.rows_read(step).tolist()
        return [round(count / len(each), 4) for count, each in zip(counts, datasets, strict=True)]
