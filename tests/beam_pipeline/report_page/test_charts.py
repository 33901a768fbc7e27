from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from beam_pipeline.report_page.charts import Curve, Histogram, column_chart, histogram_chart, log_log_chart


def numbers_of(path: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"(-?[\d.]+) (-?[\d.]+)", path)]


def parse(svg: str) -> ET.Element:
    root = ET.fromstring(svg)
    width, height = map(float, root.get("viewBox").split()[2:])
    for path in root.iter("path"):
        if "s0" in path.get("class").split():
            assert all(0 <= x <= width and 0 <= y <= height for x, y in numbers_of(path.get("d")))
    return root


def test_a_histogram_is_as_high_as_its_shares_and_says_its_counts():
    chart = parse(
        histogram_chart(
            [Histogram("train", [0, 10, 20, 40], [30, 10, 0]), Histogram("empty", [0, 1], [0])],
            x_label="x",
            unit="documents",
        )
    )
    areas = [path for path in chart.iter("path") if path.get("class").startswith("s")]
    assert len(areas) == 1
    points = numbers_of(areas[0].get("d"))
    base = points[0][1]
    heights = sorted({round(base - y, 1) for _, y in points})
    assert heights[2] == pytest.approx(3 * heights[1], rel=0.01)
    titles = [title.text for title in chart.iter("title")]
    assert titles == ["train, 0 to 10: 30 documents (75.00%)", "train, 10 to 20: 10 documents (25.00%)"]


def test_on_a_logarithmic_axis_octaves_are_equally_wide():
    chart = parse(
        histogram_chart(
            [Histogram("a", [0, 2, 4, 8], [1, 1, 1])], x_label="x", unit="rows", log=True, marker=(6, "m")
        )
    )
    widths = {float(rect.get("width")) for rect in chart.iter("rect")}
    assert max(widths) == pytest.approx(min(widths), abs=0.2)
    assert "m" in [text.text for text in chart.iter("text")]


def test_zipfs_law_is_a_straight_line_at_the_guide():
    ranks = [1, 10, 100, 1000]
    chart = parse(
        log_log_chart(
            [Curve("a", ranks, [0.1 / rank for rank in ranks])], x_label="rank", y_label="share", slope=-1.0
        )
    )
    curve, guide = (
        next(numbers_of(path.get("d")) for path in chart.iter("path") if name in path.get("class").split())
        for name in ("s0", "mark")
    )
    slope = (guide[1][1] - guide[0][1]) / (guide[1][0] - guide[0][0])
    for x, y in curve:
        assert y == pytest.approx(guide[0][1] + slope * (x - guide[0][0]), abs=0.2)


@pytest.mark.parametrize("count", [1, 3, 240, 5000])
def test_there_is_a_column_for_each_value_or_for_neighbours(count: int):
    values = [100 + index % 7 for index in range(count)]
    labels = [f"shard {index}" for index in range(count)]
    chart = parse(column_chart(values, labels, series=1, x_label="shard", y_label="bytes"))
    columns = list(chart.iter("rect"))
    assert len(columns) == min(count, -(-count // -(-count // 240)))
    assert columns[0].find("title").text.startswith("shard 0")
    left_edges = [float(column.get("x")) for column in columns]
    assert left_edges == sorted(left_edges)


def test_nothing_to_show_is_said():
    assert "no documents" in histogram_chart([Histogram("a", [0, 1], [0])], x_label="x", unit="documents")
    assert "no tokens" in log_log_chart([Curve("a", [], [])], x_label="x", y_label="y")
    assert "no shards" in column_chart([], [], series=0, x_label="x", y_label="y")


def test_names_are_escaped():
    chart = histogram_chart([Histogram("<b>&", [0, 1], [1])], x_label="<i>", unit="documents")
    assert "<b>" not in chart and "<i>" not in chart
    parse(chart)
