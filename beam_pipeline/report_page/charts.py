"""Charts as inline SVG, with the same bytes for the same numbers. Their colours come from the page's CSS."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from beam_pipeline.report_page.text import short

_WIDTH, _HEIGHT = 540, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 12, 14, 40
_MAX_COLUMNS = 240
_MAX_COLUMN_WIDTH = 44.0


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
    shown = [(number, histogram) for number, histogram in enumerate(histograms) if sum(histogram.counts)]
    if not shown:
        return _empty(f"no {unit}")
    low, high = _used_range([histogram for _, histogram in shown], log)
    if marker:
        high = max(high, marker[0] * 1.1)
    x = _axis(low, high, _LEFT, _WIDTH - _RIGHT, log)
    top = max(max(histogram.counts) / sum(histogram.counts) for _, histogram in shown)
    y = _axis(0, top * 1.06, _HEIGHT - _BOTTOM, _TOP, False)
    parts = [
        *_frame(_ticks(low, high, log), x, _ticks(0, top * 1.06, False), y, x_label, f"share of {unit}", "%")
    ]
    for number, histogram in reversed(shown):
        total = sum(histogram.counts)
        points = [(x(low), y(0))]
        for count, first, end in _bins(histogram, low):
            points += [(x(first), y(count / total)), (x(end), y(count / total))]
        points.append((points[-1][0], y(0)))
        fill = "" if number == shown[0][0] else " line"
        parts.append(f'<path class="s{number % 6}{fill}" d="{_path(points)}"/>')
    if marker and low < marker[0] <= high:
        position = x(marker[0])
        anchor, offset = ("end", -5) if position > _WIDTH / 2 else ("start", 5)
        parts.append(f'<path class="mark" d="M{position:.1f} {_TOP}V{_HEIGHT - _BOTTOM}"/>')
        parts.append(
            f'<text class="mark" x="{position + offset:.1f}" y="{_TOP + 9}" text-anchor="{anchor}">'
            f"{escape(marker[1])}</text>"
        )
    for count, first, end in _bins(shown[0][1], low):
        share = count / sum(shown[0][1].counts)
        label = f"{first:g} to {end:g}: {count:,} {unit} ({share:.2%})"
        parts.append(_hit(x(first), x(end), f"{shown[0][1].name}, {label}"))
    return _svg(parts, f"histogram of {unit} by {x_label}")


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
    high = max(max(curve.x) for _, curve in shown) * 1.05
    bottom = min(min(curve.y) for _, curve in shown) / 1.5
    top = max(max(curve.y) for _, curve in shown) * 1.5
    x = _axis(1, max(high, 10), _LEFT, _WIDTH - _RIGHT, True)
    y = _axis(bottom, top, _HEIGHT - _BOTTOM, _TOP, True)
    parts = [
        *_frame(_ticks(1, max(high, 10), True), x, _ticks(bottom, top, True), y, x_label, y_label, "log%")
    ]
    if slope is not None:
        first = shown[0][1]
        reach = min(max(high, 10), first.x[0] * (bottom / first.y[0]) ** (1 / slope))
        line = [(first.x[0], first.y[0]), (reach, first.y[0] * (reach / first.x[0]) ** slope)]
        parts.append(f'<path class="mark" d="{_path([(x(a), y(b)) for a, b in line])}"/>')
    for number, curve in reversed(shown):
        points = [(x(a), y(b)) for a, b in zip(curve.x, curve.y, strict=True)]
        parts.append(f'<path class="s{number % 6} line" d="{_path(points)}"/>')
        if number == shown[0][0]:
            for (a, b), rank, share in zip(points, curve.x, curve.y, strict=True):
                parts.append(
                    f'<circle class="hit" cx="{a:.1f}" cy="{b:.1f}" r="5"><title>{escape(curve.name)}, {x_label} '
                    f"{rank:,.0f}: {share:.3g}</title></circle>"
                )
    return _svg(parts, f"{y_label} by {x_label}")


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
    groups = [values[first : first + size] for first in range(0, len(values), size)]
    x = _axis(0, len(values), _LEFT, _WIDTH - _RIGHT, False)
    top = max(values) * 1.06
    y = _axis(0, top, _HEIGHT - _BOTTOM, _TOP, False)
    numbers = [tick for tick in _ticks(0, len(values) - 1, False) if tick == int(tick)]
    centre = _axis(-0.5, len(values) - 0.5, _LEFT, _WIDTH - _RIGHT, False)
    parts = [*_frame(numbers, centre, _ticks(0, top, False), y, x_label, y_label, "short")]
    gap = 2.0 if len(groups) < 120 else 0.0
    for index, group in enumerate(groups):
        slot = x(index * size + len(group)) - x(index * size)
        width = max(0.5, min(slot - gap, _MAX_COLUMN_WIDTH))
        first = x(index * size) + (slot - width) / 2
        height = y(0) - y(sum(group) / len(group))
        label = labels[index * size]
        if len(group) > 1:
            label = f"{label} and {len(group) - 1} more: {short(min(group))} to {short(max(group))}"
        parts.append(
            f'<rect class="s{series % 6} solid" x="{first:.1f}" y="{y(0) - height:.1f}" '
            f'width="{width:.1f}" height="{height:.1f}"><title>{escape(label)}</title></rect>'
        )
    return _svg(parts, f"{y_label} by {x_label}")


def _svg(parts: Sequence[str], label: str) -> Markup:
    return Markup(
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(label)}">'
        + "".join(parts)
        + "</svg>"
    )


def _empty(text: str) -> Markup:
    return _svg(
        [f'<text class="axis" x="{_WIDTH / 2}" y="{_HEIGHT / 2}" text-anchor="middle">{escape(text)}</text>'],
        text,
    )


def _axis(low: float, high: float, first: float, last: float, log: bool) -> Callable[[float], float]:
    """Returns a function that maps values from `low` to `high` to positions from `first` to `last`."""
    if high <= low:
        high = low * 2 if low else 1.0
    if log:
        low, high = math.log(low), math.log(high)
        return lambda value: first + (math.log(max(value, 1e-300)) - low) / (high - low) * (last - first)
    return lambda value: first + (value - low) / (high - low) * (last - first)


def _ticks(low: float, high: float, log: bool) -> list[float]:
    """Returns round values from `low` to `high`.

    >>> _ticks(0, 4200, log=False)
    [0, 1000, 2000, 3000, 4000]
    >>> _ticks(1, 200, log=True)
    [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0]

    These are powers of ten and multiples of them on a logarithmic axis, else up to 7 steps of 1, 2 or 5 times a power
    of ten.
    """
    if log:
        decades = math.log10(high / low)
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        if decades > 4:
            exponent_step = max(1, round(decades / 6))
            candidates = [10.0**power for power in powers if power % exponent_step == 0]
        else:
            steps = (1, 2, 5) if decades < 3.5 else (1, 3)
            candidates = [step * 10.0**power for power in powers for step in steps]
        return [tick for tick in candidates if low * 0.999 <= tick <= high * 1.001]
    if high <= low:
        return [low]
    step = 10 ** math.floor(math.log10((high - low) / 4))
    step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= 6)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def _frame(
    x_ticks: Sequence[float],
    x: Callable[[float], float],
    y_ticks: Sequence[float],
    y: Callable[[float], float],
    x_label: str,
    y_label: str,
    y_format: str,
) -> Iterator[str]:
    """Yields the grid, the axes and their labels."""
    bottom = _HEIGHT - _BOTTOM
    for tick in y_ticks:
        text = _tick_text(tick, y_format)
        yield f'<path class="grid" d="M{_LEFT} {y(tick):.1f}H{_WIDTH - _RIGHT}"/>'
        yield f'<text class="axis" x="{_LEFT - 6}" y="{y(tick) + 3.5:.1f}" text-anchor="end">{text}</text>'
    for tick in x_ticks:
        yield f'<path class="tick" d="M{x(tick):.1f} {bottom}v4"/>'
        yield f'<text class="axis" x="{x(tick):.1f}" y="{bottom + 16}" text-anchor="middle">{short(tick)}</text>'
    yield f'<path class="base" d="M{_LEFT} {bottom}H{_WIDTH - _RIGHT}"/>'
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    yield f'<text class="axis" x="{middle}" y="{_HEIGHT - 6}" text-anchor="middle">{escape(x_label)}</text>'
    yield (
        f'<text class="axis" transform="translate(10 {(_TOP + bottom) / 2}) rotate(-90)" text-anchor="middle">'
        f"{escape(y_label)}</text>"
    )


def _tick_text(tick: float, kind: str) -> str:
    if kind == "short":
        return short(tick)
    return f"{100 * tick:.3g}%" if kind == "%" or tick >= 1e-6 else f"{100 * tick:.0e}%"


def _used_range(histograms: Sequence[Histogram], log: bool) -> tuple[float, float]:
    """Returns the lower edge of the first non-empty bin and the upper edge of the last one."""
    lows, highs = [], []
    for histogram in histograms:
        used = [index for index, count in enumerate(histogram.counts) if count]
        lows.append(histogram.edges[used[0]])
        highs.append(histogram.edges[used[-1] + 1])
    return max(1, min(lows)) if log else min(lows), max(highs)


def _bins(histogram: Histogram, low: float) -> Iterator[tuple[int, float, float]]:
    """Yields (count, lower edge, upper edge) of the bins above `low`, up to the last non-empty one."""
    last = max(index for index, count in enumerate(histogram.counts) if count)
    for count, first, end in zip(
        histogram.counts[: last + 1], histogram.edges, histogram.edges[1:], strict=False
    ):
        if end > low:
            yield count, max(first, low), end


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in points)


def _hit(first: float, end: float, label: str) -> str:
    """Returns an invisible column that shows a tooltip."""
    return (
        f'<rect class="hit" x="{first:.1f}" y="{_TOP}" width="{end - first:.1f}" '
        f'height="{_HEIGHT - _BOTTOM - _TOP}"><title>{escape(label)}</title></rect>'
    )
