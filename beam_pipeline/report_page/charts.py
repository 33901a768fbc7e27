"""The report's charts, as inline SVG. Their colours come from the page's CSS."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from tokenmill_reader.charts import Axis, Plot, element, short, text

_MAX_COLUMNS = 240
_MAX_COLUMN_WIDTH = 44.0  # pixels


@dataclass(frozen=True)
class Histogram:
    """Counts of values by bin."""

    name: str
    """Name of the series."""
    edges: Sequence[float]
    """Edges of the bins, ascending: one more than `counts`."""
    counts: Sequence[int]


@dataclass(frozen=True)
class Curve:
    """A series of points with positive, ascending x and positive y."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


def histogram_chart(
    histograms: Sequence[Histogram],
    *,
    x_label: str,
    unit: str,
    log: bool = False,
    marker: tuple[float, str] | None = None,
) -> Markup:
    """Draws histograms as shares of their sums: the first one filled, the others as lines.

    Args:
        unit: The unit of the counts, e.g. "documents".
        log: Whether the x axis is logarithmic. It then begins at 1 or above.
        marker: A value to mark with a line, and its label.
    """
    shown = [
        (number, histogram, _bins(histogram, 1 if log else -math.inf))
        for number, histogram in enumerate(histograms)
        if sum(histogram.counts)
    ]
    if not shown:
        return _empty(f"no {unit}")
    edges = [edge for _, _, bins in shown for start, end, _ in bins for edge in (start, end)] or [1.0]
    low, high = min(edges), max(*edges, marker[0] * 1.1 if marker else 0)
    top = 1.06 * max(max(histogram.counts) / sum(histogram.counts) for _, histogram, _ in shown)
    plot = Plot(
        x=Axis(label=x_label, low=low, high=high if high > low else 2 * low, log=log, tick_text=short),
        y=Axis(label=f"share of {unit}", low=0, high=top, tick_text=_percent),
    )
    parts = list(plot.frame())
    for number, histogram, bins in reversed(shown):
        points, total = [(bins[0][0] if bins else low, 0.0)], sum(histogram.counts)
        for start, end, count in bins:
            points += [(start, count / total), (end, count / total)]
        style = "area" if number == shown[0][0] else "line"
        parts.append(plot.line([*points, (points[-1][0], 0.0)], f"s{number % 6} {style}"))
    if marker and low < marker[0] <= high:
        x, y = plot.place(marker[0], top)
        anchor, offset = ("end", -5) if x > plot.width / 2 else ("start", 5)
        parts.append(plot.line([(marker[0], 0), (marker[0], top)], "mark"))
        parts.append(
            element("text", text(marker[1]), class_="mark", x=x + offset, y=y + 9, text_anchor=anchor)
        )
    _, first, bins = shown[0]
    for start, end, count in bins:
        tooltip = f"{first.name}, {start:g} to {end:g}: {count:,} {unit} ({count / sum(first.counts):.2%})"
        parts.append(plot.column(start, end, top, "hit", tooltip=tooltip))
    return Markup(plot.svg(parts, f"histogram of {unit} by {x_label}"))


def log_log_chart(
    curves: Sequence[Curve], *, x_label: str, y_label: str, slope: float | None = None
) -> Markup:
    """Draws curves on two logarithmic axes.

    Args:
        curves: One for each series. Those without points are omitted.
        x_label: Label of the x axis.
        y_label: Label of the y axis.
        slope: Slope of a dashed line to add, which starts at the first curve's first point.
    """
    shown = [(number, curve) for number, curve in enumerate(curves) if len(curve.x)]
    if not shown:
        return _empty("no tokens")
    high = max(10, max(max(curve.x) for _, curve in shown) * 1.05)
    bottom = min(min(curve.y) for _, curve in shown) / 1.5
    top = max(max(curve.y) for _, curve in shown) * 1.5
    plot = Plot(
        x=Axis(label=x_label, low=1, high=high, log=True, tick_text=short),
        y=Axis(label=y_label, low=bottom, high=top, log=True, tick_text=_percent),
    )
    parts = list(plot.frame())
    _, first = shown[0]
    if slope is not None:
        reach = min(high, first.x[0] * (bottom / first.y[0]) ** (1 / slope))
        end = (reach, first.y[0] * (reach / first.x[0]) ** slope)
        parts.append(plot.line([(first.x[0], first.y[0]), end], "mark"))
    for number, curve in reversed(shown):
        parts.append(plot.line(zip(curve.x, curve.y, strict=True), f"s{number % 6} line"))
    for rank, share in zip(first.x, first.y, strict=True):
        tooltip = element("title", text(f"{first.name}, {x_label} {rank:,.0f}: {share:.3g}"))
        parts.append(plot.dot((rank, share), 5, "hit", tooltip))
    return Markup(plot.svg(parts, f"{y_label} by {x_label}"))


def column_chart(
    values: Sequence[float], labels: Sequence[str], *, series: int, x_label: str, y_label: str
) -> Markup:
    """Draws a column for each value. If there are very many values, neighbours share a column, which shows their mean.

    Args:
        labels: Tooltips of the values.
        series: Number of the colour.
    """
    if not values:
        return _empty("no shards")
    size = -(-len(values) // _MAX_COLUMNS)
    plot = Plot(
        x=Axis(label=x_label, low=-0.5, high=len(values) - 0.5, tick_text=short),
        y=Axis(label=y_label, low=0, high=max(values) * 1.06 or 1, tick_text=short),
    )
    parts = [*plot.frame([tick for tick in plot.x.ticks() if tick == int(tick)])]
    pixel = 1 / (plot.place(1, 0)[0] - plot.place(0, 0)[0])
    gap = 2.0 if len(values) < 120 * size else 0.0
    for first in range(0, len(values), size):
        group = values[first : first + size]
        width = max(0.5 * pixel, min(len(group) - gap * pixel, _MAX_COLUMN_WIDTH * pixel))
        middle = first + (len(group) - 1) / 2
        tooltip = labels[first]
        if len(group) > 1:
            tooltip = f"{tooltip} and {len(group) - 1} more: {short(min(group))} to {short(max(group))}"
        mean = sum(group) / len(group)
        style = f"s{series % 6} solid"
        parts.append(plot.column(middle - width / 2, middle + width / 2, mean, style, tooltip=tooltip))
    return Markup(plot.svg(parts, f"{y_label} by {x_label}"))


def _empty(reason: str) -> Markup:
    plot = Plot(x=Axis(label="", low=0, high=1), y=Axis(label="", low=0, high=1))
    words = element("text", text(reason), x=plot.width / 2, y=plot.height / 2, text_anchor="middle")
    return Markup(plot.svg([words], reason))


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"


def _bins(histogram: Histogram, low: float) -> list[tuple[float, float, int]]:
    """Returns (lower edge, upper edge, count) of the bins above `low`, from the first to the last non-empty one."""
    bins = list(zip(histogram.edges, histogram.edges[1:], histogram.counts, strict=False))
    used = [index for index, (_, _, count) in enumerate(bins) if count]
    return [(max(start, low), end, count) for start, end, count in bins[used[0] : used[-1] + 1] if end > low]
