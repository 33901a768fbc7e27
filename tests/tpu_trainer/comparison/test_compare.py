"""The comparison of runs: from their folders to tables and a page."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tpu_trainer.comparison.compared_run import TRAINING, open_runs
from tpu_trainer.comparison.differences import cautions, data_of, differing_options
from tpu_trainer.comparison.figures import key_figures, score_rows, time_rows
from tpu_trainer.comparison.page import render, text_lines, to_json
from tpu_trainer.config import CompareConfig, DataConfig, FitConfig, ModelConfig
from tpu_trainer.runs.run_folder import RunFolder
from tpu_trainer.support.errors import UsageError
from tpu_trainer.verbs.compare import main

CONFIG = FitConfig(output_dir="", data=DataConfig(train="data/train"), model=ModelConfig(type="roberta"))


def training(step: int, loss: float) -> dict[str, Any]:
    return {
        "step": step,
        "loss": loss,
        "tokens": 100 * step,
        "flops": 1e9 * step,
        "tokens_per_second": 50 * step,
    }


def evaluation(step: int, **losses: float) -> dict[str, Any]:
    splits = {
        name: {"loss": loss, "accuracy": 0.5, "bits_per_byte": loss / 2} for name, loss in losses.items()
    }
    return {"step": step, "eval": {**next(iter(splits.values())), "splits": splits}}


def entry(use: str, fingerprint: str, share: float | None = None) -> dict[str, Any]:
    sizes = {"rows": 1000, "max_length": 64, "tokens": 60_000, "documents": 10}
    return {"name": "data/train", "use": use, "share": share, "fingerprint": fingerprint * 8, **sizes}


def write_run(
    folder: Path,
    records: Sequence[dict[str, Any]],
    config: FitConfig = CONFIG,
    *,
    tokenizer: str = "{}",
    data: Sequence[dict[str, Any]] = (),
) -> str:
    source = folder.parent / f"{folder.name}-tokenizer"
    source.mkdir(parents=True)
    (source / "tokenizer.json").write_text(tokenizer)
    run = RunFolder(str(folder))
    run.start(config, str(source))
    run.write_data(list(data))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(folder)


def test_figures_are_those_of_the_last_steps_and_the_best_is_marked(tmp_path: Path) -> None:
    first = write_run(
        tmp_path / "a" / "run",
        [training(1, 9.0), training(20, 4.0), evaluation(10, v=4.0), evaluation(20, v=4.5)],
    )
    other = write_run(tmp_path / "b" / "run", [training(1, 9.0), training(30, 4.2), evaluation(30, v=4.2)])
    runs = open_runs([first, other])
    assert [run.name for run in runs] == ["a/run", "b/run"]
    rows = {row.name: row for row in key_figures(runs)}
    assert rows["training loss"].values == [4.0, 4.2]
    assert (rows["v loss"].values, rows["v loss"].best) == ([4.5, 4.2], [False, True])
    assert (rows["v lowest loss"].values, rows["v lowest loss"].best) == ([4.0, 4.2], [True, False])
    assert rows["tokens"].values == [2000, 3000] and rows["tokens"].cells == ["2k", "3k"]
    assert rows["tokens per second"].values == [525, 775]  # medians
    assert rows["v accuracy"].best == [False, False]  # equal
    assert "parameters" not in rows and "MFU" not in rows  # neither run has them


def test_an_evaluation_between_two_lines_of_training_is_placed_between_their_tokens(tmp_path: Path) -> None:
    [run, _] = open_runs(
        [
            write_run(tmp_path / "a", [training(10, 5.0), training(20, 4.0), evaluation(15, v=4.0)]),
            write_run(tmp_path / "b", []),
        ]
    )
    assert run.until([step for step, _ in run.curve("v")], "tokens").tolist() == [1500.0]
    np.testing.assert_allclose(run.until([0, 5, 20], "flops"), [0, 5e9, 2e10])


def test_time_is_compared_by_kind(tmp_path: Path) -> None:
    spent = [{"step": 30.0, "compile": 10.0}, {"step": 10.0, "compile": 10.0, "lost": 20.0}]
    runs = open_runs(
        [
            write_run(tmp_path / str(number), [training(1, 5.0) | {"spent_seconds": each}])
            for number, each in enumerate(spent)
        ]
    )
    [goodput] = [row for row in key_figures(runs) if row.name == "goodput"]
    assert (goodput.values, goodput.best) == ([0.75, 0.25], [True, False])
    assert [(row.name, row.values) for row in time_rows(runs)] == [
        ("compile", [10.0, 10.0]),
        ("step", [30.0, 10.0]),
        ("lost", [None, 20.0]),
    ]


def test_the_newest_scores_of_each_task_are_compared(tmp_path: Path) -> None:
    items = {"step": 9, "eval": {"loss": 1.0, "choices": {"items": {"accuracy": 0.25, "items": 8}}}}
    paths = [write_run(tmp_path / name, [items]) for name in "ab"]
    settings = {"limit": None, "harness": None, "precision": "float32"}
    lines = [
        {"step": step, "tasks": {"piqa": {"acc": acc, "acc_stderr": 0.01}}, "shots": shots, **settings}
        for step, acc, shots in ((1, 0.5, None), (9, 0.75, None), (9, 0.625, 5))
    ]
    Path(paths[0], "evaluations.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = {row.name: row for row in score_rows(open_runs(paths))}
    assert rows["piqa acc"].values == [0.75, None] and rows["piqa (5 shots) acc"].values == [0.625, None]
    assert rows["items accuracy"].values == [0.25, 0.25]
    assert rows["piqa acc"].cells[0] == "0.75 ± 0.01"


def test_a_short_run_is_drawn_beside_a_long_one(tmp_path: Path) -> None:
    paths = [
        write_run(tmp_path / str(scale), [training(scale * step, 9 - step / 10) for step in range(1, 40)])
        for scale in (1, 1000)
    ]
    page = render(open_runs(paths))
    lines = re.findall(r'class="s(\d) line" d="M([^"]*)"', page)
    assert len(lines) == 8 and all(points.count("L") > 30 for _, points in lines)


def test_a_split_may_be_named_training(tmp_path: Path) -> None:
    records = [training(1, 7.0), evaluation(1, training=3.0)]
    [run] = open_runs([write_run(tmp_path / "a", records)])
    assert (run.curve("training"), run.curve(TRAINING)) == ([(1, 3.0)], [(1, 7.0)])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("metrics.jsonl", '{"step": 1, "loss": 1, "tokens": "many"}\n'),
        ("metrics.jsonl", '{"step": 1, "eval": {"loss": 1.0, "splits": []}}\n'),
        ("metrics.jsonl", f'{{"step": 1, "loss": {10**400}}}\n'),
        ("metrics.jsonl", '{"step": 1, "loss": 1.0, "spent_seconds": 5}\n'),
        ("data.json", '[{"name": "a"}]'),
        ("evaluations.jsonl", '{"step": 1}\n'),
    ],
)
def test_a_damaged_file_is_named(name: str, content: str, tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", [training(1, 5.0)])
    Path(path, name).write_text(content)
    with pytest.raises(UsageError, match=f"{name}.*damaged"):
        open_runs([path])


def test_exchanged_validation_splits_are_noticed(tmp_path: Path) -> None:
    data = [[entry("validation x", a), entry("validation y", b)] for a, b in ("pq", "qp")]
    runs = open_runs([write_run(tmp_path / str(number), [], data=each) for number, each in enumerate(data)])
    assert cautions(runs) == ["The validation data differ."]
    same = [entry("training", "a", 0.5), entry("training", "b", 0.5)]
    [run] = open_runs([write_run(tmp_path / "same", [], data=same)])
    assert [row.name for row in data_of([run])] == ["training: data/train", "training: data/train#2"]


def test_a_loss_that_is_not_finite_is_left_out(tmp_path: Path) -> None:
    records = [training(1, 5.0), training(2, float("nan")), training(3, float("inf"))]
    runs = open_runs([write_run(tmp_path / "a", records), write_run(tmp_path / "b", records)])
    assert runs[0].curve(TRAINING) == [(1, 5.0)]
    assert "nan" not in re.sub(r"<style>.*</style>", "", render(runs), flags=re.DOTALL).lower()


def test_options_differ_by_their_entries_and_paths_are_not_compared(tmp_path: Path) -> None:
    configs = [
        replace(
            CONFIG,
            data=DataConfig(train=f"{hidden}/train"),
            model=replace(CONFIG.model, config={"hidden_size": hidden, "num_hidden_layers": 2}),
        )
        for hidden in (64, 128)
    ]
    runs = open_runs([write_run(tmp_path / str(number), [], config) for number, config in enumerate(configs)])
    assert [(row.name, list(row.values)) for row in differing_options(runs)] == [
        ("--model.config.hidden_size", ["64", "128"])
    ]


def test_data_differ_by_fingerprint_and_share(tmp_path: Path) -> None:
    first = [entry("training", "a", 0.25), entry("validation", "b")]
    other = [entry("training", "a", 0.75), entry("validation", "b")]
    runs = open_runs([write_run(tmp_path / "a", [], data=first), write_run(tmp_path / "b", [], data=other)])
    rows = {row.name: row for row in data_of(runs)}
    assert rows["training: data/train"].differs and not rows["validation: data/train"].differs
    assert rows["training: data/train"].values[1] == "75.0%, 1,000 rows of 64, aaaaaaaa"
    assert cautions(runs) == []


def test_losses_that_cannot_be_compared_are_named(tmp_path: Path) -> None:
    causal = replace(CONFIG, objective="clm", model=ModelConfig(type="gpt2"))
    records = [training(1, 5.0), evaluation(1, v=4.0)]
    runs = open_runs(
        [
            write_run(tmp_path / "a", records, data=[entry("validation", "a")]),
            write_run(tmp_path / "b", records, causal, tokenizer="[]", data=[entry("validation", "b")]),
        ]
    )
    rows = {row.name: row for row in key_figures(runs)}
    assert rows["v loss"].better is None and rows["v bits per byte"].better is None
    tokenizers, objectives, validation = cautions(runs)
    assert "tokenizers" in tokenizers and "objectives" in objectives and "validation data" in validation
    assert render(runs).index("Bits per byte: v") < render(runs).index("Loss: v")


def test_the_page_needs_nothing_else_and_shows_names_as_text(tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script>\x1b[31m"
    records = [training(step, 9 - step / 10) for step in range(1, 40)]
    paths = [write_run(tmp_path / name.replace("/", "_"), records) for name in (hostile, "b")]
    runs = open_runs(paths)
    page = render(runs)
    assert page == render(open_runs(paths))
    assert "<script" not in page and "\x1b" not in page and "http" not in page.replace("http-equiv", "")
    assert page.count("<svg") == 4  # the loss by step, tokens and FLOPs; and the speed
    assert "\x1b" not in "\n".join(text_lines(runs))
    assert json.loads(json.dumps(to_json(runs)))["figures"]["steps"] == {run.name: 39 for run in runs}


def test_twelve_runs_are_told_apart(tmp_path: Path) -> None:
    runs = open_runs([write_run(tmp_path / str(number), [training(1, 5.0 + number)]) for number in range(12)])
    styles = set(re.findall(r'class="(s\d line(?: dashed)?)"', render(runs)))
    assert len(styles) == 12


def test_the_verb_writes_the_page_and_refuses_what_it_cannot_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [write_run(tmp_path / name, [training(1, 5.0)]) for name in "ab"]
    page = tmp_path / "page.html"
    main(CompareConfig(runs=paths, output=str(page)))
    assert "training loss" in capsys.readouterr().out and page.read_text().startswith("<!DOCTYPE html>")
    main(CompareConfig(runs=paths, output=str(page), json=True))
    assert json.loads(capsys.readouterr().out)["page"] == str(page)
    main(CompareConfig(runs=paths[:1], output=str(page)))
    assert "Options that differ" not in page.read_text()
    with pytest.raises(UsageError, match="13 runs: give the folders of at most 12"):
        CompareConfig(runs=[f"{number}" for number in range(13)])
    for runs, output, reason in (
        ([paths[0], f"{paths[0]}/"], page, "given twice"),
        ([paths[0], str(tmp_path)], page, r"no config\.yaml there"),
        (paths, tmp_path / "absent" / "page.html", "cannot be written"),
        (paths, tmp_path, "cannot be written"),
    ):
        with pytest.raises(UsageError, match=reason):
            main(CompareConfig(runs=runs, output=str(output)))
    Path(paths[1], "metrics.jsonl").write_text("{}\n")
    with pytest.raises(UsageError, match="line 1: damaged"):
        main(CompareConfig(runs=paths, output=str(page)))
