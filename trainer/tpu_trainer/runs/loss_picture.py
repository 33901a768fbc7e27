"""The chart of a run's losses: loss.svg in its folder."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tokenmill_reader.charts import Axis, Plot, Point, element, text
from tpu_trainer.runs.checkpoint import WriteErrors
from tpu_trainer.runs.run_folder import RunFolder
from tpu_trainer.support import files

_log = logging.getLogger(__name__)

_WIDTH = 480  # pixels: narrow, so that the text stays readable where a phone's width scales the picture down
_TITLE_LENGTH = 44  # characters that fit into the width
_LABEL_GAP = 16  # pixels
_MOST_POINTS = 800  # two for each pixel of the plot


class LossPicture:
    """The chart of a run's losses."""

    def __init__(self, folder: RunFolder, *, title: str, baselines: Mapping[str, float]) -> None:
        """`baselines` are losses to compare with, in nats, by name."""
        self._folder = folder
        self._title = title
        self._baselines = baselines

    def draw(self, records: Sequence[dict[str, Any]]) -> None:
        """Draws the log's records. Reports a failed write without raising an error."""
        if not self._folder.writable:
            return
        try:
            picture = loss_picture(records, title=self._title, baselines=self._baselines)
            files.write_text(self._folder.loss_picture, picture)
        except WriteErrors as error:
            _log.warning(f"fit: {self._folder.loss_picture} cannot be written ({error}); training continues")


def loss_picture(records: Sequence[dict[str, Any]], *, title: str, baselines: Mapping[str, float]) -> str:
    """Returns an SVG document with training and validation loss by step, and baselines as horizontal lines.

    Args:
        records: The records of metrics.jsonl.
        title: The chart's title; the middle of a long one, such as a path, is left out.
        baselines: Name → loss to compare with, in nats.
    """
    training = _points((record["step"], record["loss"]) for record in records if "loss" in record)
    evaluations = [(record["step"], record["eval"]) for record in records if "eval" in record]
    series = {"training loss": training} | _validation_losses(evaluations)
    points = list(itertools.chain.from_iterable(series.values()))
    levels = [loss for _, loss in points] + list(baselines.values()) or [0.0, 1.0]
    low, high = min(levels), max(levels)
    margin = 0.05 * (high - low) or 0.5
    steps = [step for step, _ in points] or [1]
    lines_of_names = (len(series) + 1) // 2
    plot = Plot(
        x=Axis(label="step", low=0, high=max(steps), tick_text="{:,.0f}".format),
        y=Axis(label="loss, nats per token", low=max(low - margin, 0.0), high=high + margin),
        width=_WIDTH, height=380, left=52, right=16, top=50 + _LABEL_GAP * lines_of_names, bottom=44,
    )  # fmt: skip
    parts = list(plot.frame())
    end = plot.width - plot.right
    labels = [(plot.place(0, loss)[1], f"{name} {loss:.3f}") for name, loss in baselines.items()]
    parts += [plot.line([(plot.x.low, loss), (plot.x.high, loss)], "guide") for loss in baselines.values()]
    parts += [
        element("text", text(label), class_="axis", x=end, y=y - 5, text_anchor="end")
        for y, label in _spread(labels)
    ]
    for number, (name, points) in enumerate((name, points) for name, points in series.items() if points):
        style = f"s{number and (number - 1) % 5 + 1}"
        parts.append(plot.line(points, f"{style} line"))
        x, y = plot.left + number % 2 * ((end - plot.left) // 2), 50 + number // 2 * _LABEL_GAP
        label = f"{name} {points[-1][1]:.3f}"
        parts.append(element("text", text(label), class_=f"{style} series", x=x, y=y))
        if name != "training loss":
            parts += [plot.dot(point, 2.6, f"{style} dot") for point in points]
    return plot.document(parts, _shortened(title))


def _validation_losses(evaluations: Sequence[tuple[int, dict[str, Any]]]) -> dict[str, list[Point]]:
    """Returns the name of each validation curve → its points."""
    losses: dict[str, list[Point]] = {}
    for step, figures in evaluations:
        for split, each in figures.get("splits", {"validation loss": figures}).items():
            losses.setdefault(split, []).append((step, each["loss"]))
    return {split: _points(points) for split, points in losses.items()}


def _points(losses: Iterable[Point]) -> list[Point]:
    """Returns the points with finite losses: about `_MOST_POINTS` of them, and the last one."""
    points = [(step, loss) for step, loss in losses if math.isfinite(loss)]
    return [*points[: -1 : -(-len(points) // _MOST_POINTS)], points[-1]] if points else []


def _shortened(title: str) -> str:
    return title if len(title) <= _TITLE_LENGTH else f"{title[:16]}…{title[17 - _TITLE_LENGTH :]}"


def _spread(labels: list[tuple[float, str]]) -> list[tuple[float, str]]:
    """Returns labels (pixels from the top, text) from bottom to top, moved up if they would overlap."""
    placed: list[tuple[float, str]] = []
    for y, label in sorted(labels, reverse=True):
        placed.append((min(y, placed[-1][0] - _LABEL_GAP) if placed else y, label))
    return placed
