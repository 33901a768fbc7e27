"""Renders a comparison as a page and as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup

from tokenmill_reader.charts import page_style
from tokenmill_reader.console.escaping import visible
from tpu_trainer.comparison.charts import COLOURS, line_chart
from tpu_trainer.comparison.compared_run import TRAINING, ComparedRun
from tpu_trainer.comparison.differences import TOKENIZERS_DIFFER, cautions, data_of, differing_options
from tpu_trainer.comparison.figures import key_figures, score_rows, time_rows, validation_splits
from tpu_trainer.support.tables import table_lines

_UNITS = ("step", "tokens", "flops")


def render(runs: Sequence[ComparedRun]) -> str:
    """Returns the page, which needs no other file. Its bytes depend only on the runs."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["one_line"] = lambda text: visible(text, one_line=True)
    template = files("tpu_trainer.comparison").joinpath("page.html.jinja").read_text(encoding="utf-8")
    options = differing_options(runs)
    return environment.from_string(template).render(
        css=Markup(page_style()),
        runs=[
            {"name": run.name, "key": number % COLOURS, "dashed": number >= COLOURS}
            for number, run in enumerate(runs)
        ],
        cautions=cautions(runs),
        figures=key_figures(runs),
        charts=_charts(runs),
        scores=score_rows(runs),
        times=time_rows(runs),
        options=options,
        data=data_of(runs),
    )


def _charts(runs: Sequence[ComparedRun]) -> Iterator[tuple[str, list[Markup]]]:
    """Yields the title and the charts of each section; sections without figures are left out."""
    splits = validation_splits(runs)
    sections = [(f"Loss: {split}", split, "loss", "nats per token", _UNITS) for split in splits]
    if TOKENIZERS_DIFFER in cautions(runs):
        sections = [
            (f"Bits per byte: {split}", split, "bits_per_byte", "bits per byte", _UNITS) for split in splits
        ] + sections
    sections.append(("Training loss", TRAINING, "loss", "nats per token", _UNITS))
    sections.append(("Speed", TRAINING, "tokens_per_second", "tokens per second", ("step",)))
    for title, split, figure, label, units in sections:
        charts = [line_chart(runs, split, figure, unit, label) for unit in units]
        if shown := [chart for chart in charts if chart is not None]:
            yield title, shown


def text_lines(runs: Sequence[ComparedRun]) -> Iterator[str]:
    """Yields tables of the figures, the scores and the options that differ, with a column for each run."""
    for reason in cautions(runs):
        yield f"note: {reason}"
    heads = [visible(run.name, one_line=True) for run in runs]
    figures = [[row.name, *row.cells] for row in [*key_figures(runs), *score_rows(runs)]]
    options = [[row.name, *row.values] for row in differing_options(runs)]
    data = [[row.name, *row.values] for row in data_of(runs) if row.differs]
    for title, rows in (("", figures), ("options that differ", options), ("data that differ", data)):
        if rows:
            yield from table_lines(
                [[title, *heads], *([visible(cell, one_line=True) for cell in row] for row in rows)]
            )
            yield ""


def to_json(runs: Sequence[ComparedRun]) -> dict[str, Any]:
    """Returns what the page shows, without the curves."""

    def by_run(values: Sequence[Any]) -> Mapping[str, Any]:
        return {run.name: value for run, value in zip(runs, values, strict=True)}

    return {
        "notes": cautions(runs),
        "figures": {row.name: by_run(row.values) for row in key_figures(runs)},
        "seconds": {row.name: by_run(row.values) for row in time_rows(runs)},
        "scores": {row.name: by_run(row.values) for row in score_rows(runs)},
        "options": {row.name: by_run(row.values) for row in differing_options(runs)},
        "data": {row.name: by_run(row.values) for row in data_of(runs)},
    }
