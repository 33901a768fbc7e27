"""The chart of a run's losses."""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ElementTree

from tpu_trainer.runs.loss_picture import loss_picture

SVG = "{http://www.w3.org/2000/svg}"


def lines_of(text: str) -> tuple[list[list[tuple[float, float]]], list[str], int]:
    """The points of the series' lines, the texts, the number of dots."""
    root = ElementTree.fromstring(text)
    lines = [
        [tuple(map(float, point.split())) for point in line.attrib["d"].removeprefix("M").split("L")]
        for line in root.iter(f"{SVG}path")
        if line.attrib["class"].endswith(" line")
    ]
    return lines, [text.text for text in root.iter(f"{SVG}text")], len(list(root.iter(f"{SVG}circle")))


def test_losses_are_drawn_to_scale_and_named() -> None:
    records = [{"step": step, "loss": 8.0 - step / 100} for step in range(0, 401, 100)]
    records += [{"step": 200, "eval": {"loss": 6.5}}, {"step": 400, "eval": {"loss": 4.5}}]
    picture = loss_picture(records, title="roberta on a<b", baselines={"unigram entropy": 6.0})
    (training, validation), texts, dots = lines_of(picture)
    assert len(training) == 5
    x_positions = [x for x, _ in training]
    assert [round(x - x_positions[0], 1) for x in x_positions] == [
        round(i * (x_positions[1] - x_positions[0]), 1) for i in range(5)
    ]
    assert [y for _, y in training] == sorted(y for _, y in training)  # a falling loss goes down
    assert validation[0][0] == training[2][0]
    assert validation[1][1] < training[4][1]  # 4.5 is above 4.0
    assert dots == 2
    assert {"roberta on a<b", "unigram entropy 6.000", "training loss 4.000", "validation loss 4.500"} <= set(
        texts
    )


def test_labels_do_not_overlap() -> None:
    records = [{"step": 1, "loss": 5.0}, {"step": 9, "loss": 5.001}, {"step": 9, "eval": {"loss": 5.002}}]
    picture = loss_picture(records, title="", baselines={"unigram entropy": 5.0, "bigram entropy": 5.001})
    labels = [
        text
        for text in ElementTree.fromstring(picture).iter(f"{SVG}text")
        if text.text and text.text.startswith(("training", "validation", "unigram", "bigram"))
    ]
    assert len(labels) == 4
    for one, other in itertools.combinations(labels, 2):
        below = abs(float(one.attrib["y"]) - float(other.attrib["y"])) >= 15
        beside = abs(float(one.attrib["x"]) - float(other.attrib["x"])) >= 160
        assert below or beside, (one.text, other.text)


def test_each_validation_split_has_a_curve_and_a_label() -> None:
    splits = {f"split-{number}": {"loss": 5.0 + number} for number in range(4)}
    records = [{"step": 1, "loss": 9.0}]
    records += [{"step": step, "eval": {"loss": 5.0, "splits": splits}} for step in (1, 9)]
    picture = loss_picture(records, title="", baselines={})
    lines, texts, dots = lines_of(picture)
    assert len(lines) == 5 and dots == 8
    assert {"training loss 9.000", "split-0 5.000", "split-3 8.000"} <= set(texts)
    labels = [
        text for text in ElementTree.fromstring(picture).iter(f"{SVG}text") if "split-" in (text.text or "")
    ]
    assert len({(text.attrib["x"], text.attrib["y"]) for text in labels}) == 4
    assert len({text.attrib["class"] for text in labels}) == 4


def test_text_is_readable_at_the_width_of_a_phone() -> None:
    root = ElementTree.fromstring(loss_picture([{"step": 1, "loss": 5.0}], title="", baselines={}))
    assert 360 / float(root.attrib["width"]) * float(root.attrib["font-size"]) >= 9


def test_a_long_path_keeps_its_end_in_the_title() -> None:
    title = "gpt2 on /home/someone/corpora/the-text-of-some-language/dataset/train"
    _, texts, _ = lines_of(loss_picture([], title=title, baselines={}))
    assert texts[0] == "gpt2 on /home/so…some-language/dataset/train"


def test_long_and_empty_runs_are_drawn() -> None:
    records = [{"step": step, "loss": 1.0} for step in range(1, 100_001, 10)]
    (training,), _, _ = lines_of(loss_picture(records, title="", baselines={}))
    assert len(training) <= 802
    assert lines_of(loss_picture([], title="", baselines={}))[0] == []
    assert "nan" not in loss_picture([{"step": 1, "loss": float("nan")}], title="", baselines={})
