"""Charts as SVG: axes, lines and columns, in light and dark colours. Equal numbers give equal bytes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files

from tokenmill_reader.console.escaping import visible

_COLOURS = {  # light, dark
    "card": ("#ffffff", "#1b1f25"), "ink": ("#1d2126", "#e7e9ec"), "soft": ("#5d6673", "#a5aebb"),
    "faint": ("#8b94a1", "#7b8593"), "line": ("#e4e2dd", "#2d333b"), "mark": ("#b4232a", "#ff7b72"),
    "s0": ("#2f6fd0", "#6aa5ff"), "s1": ("#d2640f", "#ff9d52"), "s2": ("#20906a", "#4fcb9d"),
    "page": ("#fbfaf8", "#14171b"), "chip": ("#f1efea", "#262c34"),
    "t0": ("#2f6fd026", "#6aa5ff2e"), "t1": ("#d2640f22", "#ff9d5229"),
    "s3": ("#8b55c9", "#bd93f5"), "s4": ("#b8860b", "#e5bd4f"), "s5": ("#c2407a", "#f285b5"),
}  # fmt: skip
_IN_DARK = "@media (prefers-color-scheme: dark)"
_RULES = """\
svg text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; fill: var(--soft); }
svg text.title { fill: var(--ink); font-size: 15px; font-weight: 600; }
svg text.series { fill: currentColor; }
svg .background { fill: var(--card); }
svg .gridline { stroke: var(--line); }
svg .tick, svg .base { stroke: var(--faint); }
svg .s0 { color: var(--s0); } svg .s1 { color: var(--s1); } svg .s2 { color: var(--s2); }
svg .s3 { color: var(--s3); } svg .s4 { color: var(--s4); } svg .s5 { color: var(--s5); }
svg .line { stroke: currentColor; stroke-width: 1.8; fill: none; }
svg .area { stroke: currentColor; fill: currentColor; fill-opacity: .22; }
svg .dot { fill: currentColor; }
svg .solid { fill: currentColor; fill-opacity: .85; shape-rendering: crispEdges; }
svg .solid:hover { fill-opacity: 1; }
svg .hit { fill: transparent; }
svg .hit:hover { fill: var(--ink); fill-opacity: .07; }
svg path.guide { stroke: var(--soft); stroke-dasharray: 5 4; }
svg path.mark { stroke: var(--mark); stroke-width: 1.2; stroke-dasharray: 4 3; }
svg text.mark { fill: var(--mark); }
"""

Point = tuple[float, float]


def page_style() -> str:
    """Returns the CSS that all pages begin with: the colours as variables, the charts, and what surrounds them."""
    light, dark = ("".join(f" --{name}: {pair[i]};" for name, pair in _COLOURS.items()) for i in (0, 1))
    colours = f":root {{ color-scheme: light dark;{light} }}\n{_IN_DARK} {{ :root {{{dark} }} }}\n"
    return colours + _RULES + files("tokenmill_reader").joinpath("page.css").read_text(encoding="utf-8")


def short(value: float) -> str:
    """Formats a number with few characters: 1500 → 1.5k."""
    for size, unit in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 0.9995 * size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def _document_style() -> str:
    """Returns CSS without variables, which image viewers other than browsers ignore."""
    light, dark = (re.sub(r"var\(--(\w+)\)", lambda name, i=i: _COLOURS[name[1]][i], _RULES) for i in (0, 1))
    return f"\n{light}{_IN_DARK} {{\n{dark}}}\n"


def element(tag: str, *content: str, **attributes: float | str) -> str:
    """Returns an SVG element. Its attributes are escaped, its content is SVG.

    An underscore in an attribute's name becomes a hyphen, except the last one, which avoids a keyword of Python.

    >>> element("circle", element("title", "2"), class_="dot", cx=0.25, cy=3, text_anchor="a<b")
    '<circle class="dot" cx="0.2" cy="3" text-anchor="a&lt;b"><title>2</title></circle>'
    """
    names = {name: name.rstrip("_").replace("_", "-") for name in attributes}
    written = "".join(
        f' {names[name]}="{f"{value:.1f}" if isinstance(value, float) else text(str(value))}"'
        for name, value in attributes.items()
    )
    return f"<{tag}{written}>{''.join(content)}</{tag}>"


def text(content: str) -> str:
    """Returns a text of unknown origin as content of an element."""
    return escape(visible(content, one_line=True))


@dataclass(frozen=True, kw_only=True)
class Axis:
    """The values from `low` to `high`, which is larger, on a linear or a logarithmic scale."""

    label: str
    low: float
    high: float
    log: bool = False
    tick_text: Callable[[float], str] = "{:g}".format

    def share(self, value: float) -> float:
        """Returns the place of a value: 0 at `low`, 1 at `high`."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        """Returns round values from `low` to `high`.

        >>> Axis(label="step", low=0, high=4200).ticks()
        [0, 1000, 2000, 3000, 4000]
        >>> Axis(label="tokens", low=1, high=200, log=True).ticks()
        [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0]

        These are powers of ten and multiples of them on a logarithmic axis, else up to 7 multiples of 1, 2 or 5 times a
        power of ten.
        """
        if self.log:
            return self._log_ticks()
        least = (self.high - self.low) / 6
        power = 10 ** math.floor(math.log10(least))
        step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least * (1 - 1e-9))
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [index * step for index in range(first, last + 1)]

    def _log_ticks(self) -> list[float]:
        decades = math.log10(self.high / self.low)
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        if decades > 4:
            exponent_step = max(1, round(decades / 6))
            candidates = [10.0**power for power in powers if power % exponent_step == 0]
        else:
            factors = (1, 2, 5) if decades < 3.5 else (1, 3)
            candidates = [factor * 10.0**power for power in powers for factor in factors]
        return [tick for tick in candidates if self.low * 0.999 <= tick <= self.high * 1.001]


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A picture with two axes. Lengths are in pixels; the margins are outside of the axes."""

    x: Axis
    y: Axis
    width: int = 540
    height: int = 250
    left: int = 70
    right: int = 12
    top: int = 14
    bottom: int = 40

    def place(self, x: float, y: float) -> Point:
        """Returns the position of a point."""
        return (
            self.left + self.x.share(x) * (self.width - self.right - self.left),
            self.height - self.bottom - self.y.share(y) * (self.height - self.bottom - self.top),
        )

    def frame(self, x_ticks: Sequence[float] | None = None) -> Iterator[str]:
        """Yields the grid, the axes and their labels. `x_ticks` replace the ticks of the x axis."""
        end, base = self.width - self.right, self.height - self.bottom
        middle = {"class_": "axis", "text_anchor": "middle"}
        for tick in self.y.ticks():
            y = self.place(self.x.low, tick)[1]
            yield element("path", class_="gridline", d=f"M{self.left} {y:.1f}H{end}")
            label = text(self.y.tick_text(tick))
            yield element("text", label, class_="axis", x=self.left - 6, y=y + 3.5, text_anchor="end")
        for tick in self.x.ticks() if x_ticks is None else x_ticks:
            x = self.place(tick, self.y.low)[0]
            yield element("path", class_="tick", d=f"M{x:.1f} {base}v4")
            yield element("text", text(self.x.tick_text(tick)), x=x, y=base + 16, **middle)
        yield element("path", class_="base", d=f"M{self.left} {base}H{end}")
        yield element("text", text(self.x.label), x=(self.left + end) / 2, y=self.height - 6, **middle)
        turned = f"translate(14 {(self.top + base) / 2}) rotate(-90)"
        yield element("text", text(self.y.label), transform=turned, **middle)

    def line(self, points: Iterable[Point], style: str) -> str:
        """Draws straight lines from point to point, of a series (`s0 line`, `s0 area`) or other meaning (`mark`)."""
        places = (self.place(x, y) for x, y in points)
        return element("path", class_=style, d="M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places))

    def column(self, first: float, end: float, value: float, style: str, *, tooltip: str) -> str:
        """Draws a rectangle from the base to a value: a column (`s0 solid`), or what shows a tooltip (`hit`)."""
        left, top = self.place(first, value)
        right, base = self.place(end, self.y.low)
        title = element("title", text(tooltip))
        return element("rect", title, class_=style, x=left, y=top, width=right - left, height=base - top)

    def dot(self, point: Point, radius: float, style: str, *content: str) -> str:
        x, y = self.place(*point)
        return element("circle", *content, class_=style, cx=x, cy=y, r=radius)

    def svg(self, parts: Iterable[str], label: str) -> str:
        """Returns the picture as part of a page that has `page_style`. `label` describes it to screen readers."""
        box = f"0 0 {self.width} {self.height}"
        return element("svg", *parts, viewBox=box, role="img", aria_label=label, font_size=11)

    def document(self, parts: Iterable[str], title: str) -> str:
        """Returns the picture as a file, with a title in its upper left corner."""
        size = {"width": self.width, "height": self.height}
        lines = [
            "",
            element("style", _document_style()),
            element("rect", class_="background", **size),
            element("text", text(title), class_="title", x=self.left, y=28),
            *parts,
            "",
        ]
        box = {"viewBox": f"0 0 {self.width} {self.height}", "xmlns": "http://www.w3.org/2000/svg"}
        return element("svg", "\n".join(lines), **box, **size, font_size=12) + "\n"
