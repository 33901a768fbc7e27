from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest

from tokenmill_reader.charts import Axis, Plot, page_style, short, text

PLOT = Plot(x=Axis(label="<x>", low=0, high=10), y=Axis(label="y", low=1, high=1000, log=True))


def test_a_document_has_light_and_dark_colours_without_css_variables() -> None:
    document = PLOT.document([PLOT.line([(0, 1), (10, 1000)], "s0 line")], "a & b")
    style, background, title, line = ElementTree.fromstring(document)
    light, dark = style.text.split("@media (prefers-color-scheme: dark)")
    colours = [dict(re.findall(r"svg (\S+) {.*?(#\w{6})", rules)) for rules in (light, dark)]
    assert colours[0].keys() == colours[1].keys() >= {".s0", ".s5", ".background", "text.title"}
    assert all(colours[0][name] != colours[1][name] for name in colours[0])
    assert "var(" not in document
    assert (background.get("class"), title.text, line.get("class")) == ("background", "a & b", "s0 line")


def test_the_style_of_a_page_defines_every_colour_that_it_uses() -> None:
    light, dark = (
        set(re.findall(r"(--\w+):", rules))
        for rules in page_style().split("@media (prefers-color-scheme: dark)")
    )
    assert light == dark == set(re.findall(r"var\((--\w+)\)", page_style()))


def test_labels_are_escaped() -> None:
    root = ElementTree.fromstring(PLOT.svg(PLOT.frame(), 'a"<b>\x00'))
    assert root.get("aria-label") == r'a"<b>\x00'
    assert "<x>" in [label.text for label in root.iter("text")]
    assert text("\x1b[31m\u202e") == r"\x1b[31m\u202e"


def test_points_are_placed_between_the_margins() -> None:
    assert PLOT.place(0, 1) == (PLOT.left, PLOT.height - PLOT.bottom)
    assert PLOT.place(10, 1000) == pytest.approx((PLOT.width - PLOT.right, PLOT.top))
    assert PLOT.place(5, 10)[1] - PLOT.place(5, 100)[1] == pytest.approx((250 - 14 - 40) / 3)


@pytest.mark.parametrize(
    ("low", "high", "log", "ticks"),
    [
        (0, 1, False, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (3.9, 7.6, False, [4, 5, 6, 7]),
        (-0.5, 2.5, False, [-0.5, 0, 0.5, 1, 1.5, 2, 2.5]),
        (1, 9000, True, [1, 3, 10, 30, 100, 300, 1000, 3000]),
        (1e-9, 1, True, [1e-8, 1e-6, 1e-4, 1e-2, 1]),
    ],
)
def test_ticks_are_round_numbers(low: float, high: float, log: bool, ticks: list[float]) -> None:
    assert Axis(label="", low=low, high=high, log=log).ticks() == pytest.approx(ticks)


def test_short_numbers() -> None:
    short_numbers = " ".join(map(short, (0, 12, 999, 999_999, 1500, 2.5e6, 3e9, 4e12, 5e18)))
    assert short_numbers == "0 12 999 1M 1.5k 2.5M 3G 4T 5E"
