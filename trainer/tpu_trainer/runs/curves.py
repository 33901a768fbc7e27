"""A chart of a run's losses as SVG, drawn without a library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

_WIDTH, _HEIGHT = 860, 440
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 190, 56, 52
_TRAINING, _VALIDATION, _BASELINE = "#2563a8", "#d2581f", "#5f6670"
_LABEL_GAP = 16
_MOST_POINTS = 800  # about the chart's width in pixels

Point = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class _Axis:
    """Maps values from `low` to `high` to pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def place(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self, about: int) -> list[float]:
        """Returns round values at intervals of 1, 2 or 5 times a power of ten."""
        least = (self.high - self.low) / about
        power = 10.0 ** math.floor(math.log10(least))
        step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [index * step for index in range(first, last + 1)]


def loss_picture(records: Sequence[dict[str, Any]], *, title: str, baselines: dict[str, float]) -> str:
    """Returns an SVG document with training and validation loss by step, and baselines as horizontal lines.

    Args:
        records: The records of metrics.jsonl.
        title: The chart's title.
        baselines: Name → loss to compare with, in nats.
    """
    training = [(record["step"], record["loss"]) for record in records if "loss" in record]
    validation = [(record["step"], record["eval"]["loss"]) for record in records if "eval" in record]
    training, validation = (
        [point for point in points if math.isfinite(point[1])] for points in (training, validation)
    )
    levels = [loss for _, loss in training + validation] + list(baselines.values()) or [0.0, 1.0]
    low, high = min(levels), max(levels)
    margin = 0.05 * (high - low) or 0.5
    steps = [step for step, _ in training + validation] or [1]
    x = _Axis(low=0, high=max(steps), start=_LEFT, end=_WIDTH - _RIGHT)
    y = _Axis(low=max(low - margin, 0.0), high=high + margin, start=_HEIGHT - _BOTTOM, end=_TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'height="{_HEIGHT}" font-family="system-ui, sans-serif" font-size="12" fill="#30343a">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="28" font-size="15" font-weight="600">{escape(title)}</text>',
        *_frame(x, y),
    ]
    labels: list[tuple[float, str, str]] = []
    for name, value in baselines.items():
        level = y.place(value)
        parts.append(
            f'<line x1="{x.start}" x2="{x.end}" y1="{level:.1f}" y2="{level:.1f}" stroke="{_BASELINE}" '
            'stroke-dasharray="5 4"/>'
        )
        labels.append((level, f"{name} {value:.3f}", _BASELINE))
    for name, points, colour in (
        ("training loss", training, _TRAINING),
        ("validation loss", validation, _VALIDATION),
    ):
        if points:
            parts += _line(points, x, y, colour, dots=points is validation)
            labels.append((y.place(points[-1][1]), f"{name} {points[-1][1]:.3f}", colour))
    for level, text, colour in _spread(labels):
        parts.append(f'<text x="{x.end + 10}" y="{level + 4:.1f}" fill="{colour}">{escape(text)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _frame(x: _Axis, y: _Axis) -> list[str]:
    parts = []
    for value in y.ticks(6):
        level = y.place(value)
        parts.append(
            f'<line x1="{x.start}" x2="{x.end}" y1="{level:.1f}" y2="{level:.1f}" stroke="#e4e6e9"/>'
        )
        parts.append(f'<text x="{x.start - 8}" y="{level + 4:.1f}" text-anchor="end">{value:g}</text>')
    for value in x.ticks(6):
        parts.append(
            f'<text x="{x.place(value):.1f}" y="{y.start + 18}" text-anchor="middle">{value:,.0f}</text>'
        )
    middle = (x.start + x.end) / 2
    parts.append(f'<line x1="{x.start}" x2="{x.end}" y1="{y.start}" y2="{y.start}" stroke="#9aa0a8"/>')
    parts.append(f'<text x="{middle}" y="{y.start + 40}" text-anchor="middle">step</text>')
    parts.append(f'<text x="{x.start}" y="{y.end - 10}">loss, nats per token</text>')
    return parts


def _line(points: list[Point], x: _Axis, y: _Axis, colour: str, *, dots: bool) -> list[str]:
    every = -(-len(points) // _MOST_POINTS)
    points = [*points[:-1:every], points[-1]]
    places = [(x.place(step), y.place(loss)) for step, loss in points]
    path = " ".join(f"{across:.1f},{up:.1f}" for across, up in places)
    parts = [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>']
    if dots:
        parts += [
            f'<circle cx="{across:.1f}" cy="{up:.1f}" r="2.6" fill="{colour}"/>' for across, up in places
        ]
    return parts


def _spread(labels: list[tuple[float, str, str]]) -> list[tuple[float, str, str]]:
    """Returns the labels from top to bottom, moved apart if they would overlap."""
    placed: list[tuple[float, str, str]] = []
    for level, text, colour in sorted(labels):
        lowest = placed[-1][0] + _LABEL_GAP if placed else -math.inf
        placed.append((max(level, lowest), text, colour))
    return placed
