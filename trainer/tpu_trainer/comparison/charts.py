"""The charts of a comparison: a line for each run."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from tokenmill_reader.charts import Axis, Plot, element, short, text
from tpu_trainer.comparison.compared_run import ComparedRun

COLOURS = 6
_MOST_POINTS = 150  # of a line
_FEW_POINTS = 20  # each is a dot then, as for evaluations
_FIRST_PART = 0.03  # of a run, in which the loss falls from a height that would flatten the rest
_FAR_APART = 20  # times: a logarithmic axis shows both runs

_UNITS = {"step": "step", "tokens": "tokens", "flops": "floating-point operations"}


def line_chart(runs: Sequence[ComparedRun], split: str, figure: str, unit: str, label: str) -> Markup | None:
    """Draws a figure by step, tokens or FLOPs; returns None if no run has it.

    Args:
        runs: The runs. Each has the colour of its number.
        split: TRAINING or the name of a validation split.
        figure: The key in the records.
        unit: What the x axis counts: step, tokens or flops.
        label: Of the y axis.
    """
    lines = {number: _points(run, split, figure, unit) for number, run in enumerate(runs)}
    lines = {number: points for number, points in lines.items() if points}
    if not lines:
        return None
    ends = [points[-1][0] for points in lines.values()]
    first = min(points[0][0] for points in lines.values())
    log = max(ends) > _FAR_APART * min(ends) and first > 0
    end = max(*ends, first + 1e-9)
    values = [
        value for points in lines.values() for x, value in points if x > _FIRST_PART * points[-1][0]
    ] or [points[-1][1] for points in lines.values()]
    low, high = min(values), max(values)
    margin = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    low, high = max(low - margin, 0.0) if low >= 0 else low - margin, high + margin
    plot = Plot(
        x=Axis(label=_UNITS[unit], low=first if log else 0.0, high=end, log=log, tick_text=short),
        y=Axis(label=label, low=low, high=high, tick_text=short if high >= 1000 else "{:.4g}".format),
        width=400, left=62,
    )  # fmt: skip
    parts = list(plot.frame())
    for number, points in lines.items():
        inside = [point for point in points if low <= point[1] <= high]
        style = f"s{number % COLOURS}"
        parts.append(plot.line(inside, f"{style} line{' dashed' if number >= COLOURS else ''}"))
        for x, value in inside:
            tooltip = f"{runs[number].name}, {_UNITS[unit]} {short(x)}: {value:.4g}"
            title = element("title", text(tooltip))
            shown = (2.6, f"{style} dot") if len(inside) <= _FEW_POINTS else (4, "hit")
            parts.append(plot.dot((x, value), *shown, title))
    return Markup(plot.svg(parts, f"{label} by {_UNITS[unit]}"))


def _points(run: ComparedRun, split: str, figure: str, unit: str) -> list[tuple[float, float]]:
    curve = run.curve(split, figure)
    # Every n-th, counted from the end, so that the last one is shown.
    curve = curve[:: -max(1, -(-len(curve) // _MOST_POINTS))][::-1]
    places = run.until([step for step, _ in curve], unit)
    return (
        [] if places is None else [(x, value) for x, (_, value) in zip(places.tolist(), curve, strict=True)]
    )
