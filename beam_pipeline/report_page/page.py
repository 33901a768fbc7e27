"""Renders the page: collects a dataset's figures and charts, and fills them into `page.html.jinja`.

The charts are inline SVG from `charts` rather than from a plotting library, so that they follow the page's light or
dark colours and show each bin's count as a tooltip.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
from markupsafe import Markup

from beam_pipeline.dataset.statistics import TARGET_HISTOGRAMS
from beam_pipeline.report_page.charts import Curve, Histogram, column_chart, histogram_chart, log_log_chart
from beam_pipeline.report_page.removed import removed_section
from beam_pipeline.report_page.rows import shown_rows
from beam_pipeline.report_page.text import count, option_value
from beam_pipeline.support.amounts import counted
from beam_pipeline.views.command import input_name, prepare_command
from beam_pipeline.views.decoding import TextDecoder
from beam_pipeline.views.pages import environment, read_text
from beam_pipeline.views.reading import FinishedSplit
from beam_pipeline.views.round_trip import RoundTrip
from beam_pipeline.views.sources import summarize_sources
from tokenmill_reader.charts import page_style

_PACKAGE = "beam_pipeline.report_page"
_QUANTILES = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99)
_TOP_TOKENS = 40
_MAX_INPUTS = 20
_FULL = 0.995  # with a mean fill above this, a histogram of the rows' fill would have only one visible column
_FEWEST, _FEW = 30, 1000  # documents: with fewer, a histogram of them is not drawn, or is smoothed
_TOGETHER = 4  # neighbouring bins


def render(splits: Sequence[FinishedSplit]) -> bytes:
    """Renders the page as UTF-8. The bytes depend only on the dataset and on the source files that still exist."""
    decoder = splits[0].decoder()
    shown = [_ShownSplit(split, split.statistics(), number) for number, split in enumerate(splits)]
    return (
        environment(_PACKAGE)
        .get_template("page.html.jinja")
        .render(
            css=Markup(page_style() + read_text(_PACKAGE, "page.css")),
            name=input_name(splits[0]),
            command=prepare_command(splits[0], "OUT"),
            sources=summarize_sources(splits),
            manifest=splits[0].manifest,
            round_trip=_round_trip(splits[0].manifest),
            removed=removed_section(splits[0]),
            splits=shown,
            total={name: sum(entry.totals.get(name, 0) for entry in shown) for name in shown[0].totals},
            has_targets=splits[0].has_targets,
            quantile_shares=_QUANTILES,
            quantiles=_quantiles(shown),
            tokens=_tokens(shown, decoder),
            charts=_charts(shown),
            small=[split.name for split in shown if 0 < split.totals["documents"] < _FEWEST],
            first_inputs=list(islice(splits[0].inputs(), _MAX_INPUTS)),
            rows=shown_rows(splits, decoder),
            count=count,
            option_value=option_value,
        )
        .encode()
    )


def _round_trip(manifest: Mapping[str, Any]) -> str | None:
    """Describes what the tokenizer loses of the text; None if `prepare` saw nothing."""
    entry = manifest.get("round_trip")
    return None if entry is None else RoundTrip.from_json(entry).describe()


@dataclass(frozen=True)
class _ShownSplit:
    """A split and its statistics. `number` selects its colour."""

    split: FinishedSplit
    statistics: Mapping[str, Any]
    number: int

    @property
    def name(self) -> str:
        return self.split.name

    @property
    def totals(self) -> Mapping[str, int]:
        return self.split.manifest["totals"]

    @property
    def shards(self) -> Sequence[Mapping[str, Any]]:
        return self.split.manifest["shards"]

    @property
    def fill(self) -> float:
        """The share of the rows' slots that contain tokens."""
        return self.totals["tokens"] / max(1, self.totals["tokens"] + self.totals["padding"])

    @cached_property
    def token_counts(self) -> np.ndarray:
        """int64 [vocabulary size]."""
        return np.array(self.statistics["token_counts"], np.int64)

    def histogram(self, name: str, *, scale: float = 1) -> Histogram:
        recorded = self.statistics[name]
        return Histogram(self.name, [scale * edge for edge in recorded["edges"]], recorded["counts"])

    @property
    def shard_chart(self) -> Markup | None:
        """The chart of the shards' sizes; None for a single shard."""
        if len(self.shards) < 2:
            return None
        labels = [f"{s['name']}: {s['records']:,} records, {s['bytes']:,} bytes" for s in self.shards]
        sizes = [shard["bytes"] for shard in self.shards]
        return column_chart(sizes, labels, series=self.number, x_label="shard", y_label="bytes")

    @property
    def balance(self) -> str:
        """Describes how evenly the rows are distributed over the shards."""
        shards = self.shards
        if not shards:
            return "none"
        if len(shards) == 1:
            return f"one shard of {counted(shards[0]['records'], 'record')}"
        full = [shard["bytes"] for shard in shards if shard["records"] == shards[0]["records"]]
        spread = (max(full) - min(full)) / (sum(full) / len(full))
        return (
            f"{len(shards):,} shards of {shards[0]['records']:,} records, the last one of {shards[-1]['records']:,}; "
            f"sizes of full shards differ by {spread:.2%}"
        )


def comparable(histograms: Sequence[Histogram]) -> list[Histogram]:
    """Returns histograms of lengths for one chart, without the noise of small samples.

    Those that count almost nothing become empty. If all others count few, neighbouring bins are merged; else the counts
    of each that does are spread evenly over neighbouring bins, so that the heights can be compared.

    >>> small, large = Histogram("a", [0, 1, 2, 3, 4, 5], [0, 40, 0, 0, 7]), Histogram("b", [0, 1], [5000])
    >>> [each.counts for each in comparable([small])], [each.counts for each in comparable([small, large])]
    ([[40, 7]], [[10.0, 10.0, 10.0, 10.0, 7.0], [5000]])
    """
    shown = [
        each if sum(each.counts) >= _FEWEST else Histogram(each.name, each.edges, [0] * len(each.counts))
        for each in histograms
    ]
    totals = [sum(each.counts) for each in shown]
    if max(totals) < _FEW:
        return [_merged(each) for each in shown]
    return [_smoothed(each) if total < _FEW else each for each, total in zip(shown, totals, strict=True)]


def _merged(histogram: Histogram) -> Histogram:
    counts, edges = histogram.counts, histogram.edges
    merged = [sum(counts[first : first + _TOGETHER]) for first in range(0, len(counts), _TOGETHER)]
    return Histogram(histogram.name, [*edges[:-1:_TOGETHER], edges[-1]], merged)


def _smoothed(histogram: Histogram) -> Histogram:
    groups = [
        histogram.counts[first : first + _TOGETHER] for first in range(0, len(histogram.counts), _TOGETHER)
    ]
    counts = [sum(group) / len(group) for group in groups for _ in group]
    return Histogram(histogram.name, histogram.edges, counts)


def quantile(histogram: Histogram, share: float) -> float:
    """Approximates a quantile, assuming that values are evenly distributed within each bin."""
    counts = np.array(histogram.counts, np.float64)
    target = share * counts.sum()
    index = min(int(np.searchsorted(np.cumsum(counts), target)), len(counts) - 1)
    low, high = histogram.edges[index], histogram.edges[index + 1]
    count_below = counts[:index].sum()
    return low + (high - low) * (target - count_below) / max(counts[index], 1)


def _quantiles(shown: Sequence[_ShownSplit]) -> list[dict[str, Any]]:
    """Returns the quantiles of document lengths: a table row for each split and unit."""
    return [
        {
            "split": split,
            "unit": unit,
            "values": [quantile(split.histogram(name), share) for share in _QUANTILES],
            "max": split.statistics[name]["max"],
            "mean": split.statistics[name]["mean"],
        }
        for split in shown
        for name, unit in (("document_tokens", "tokens"), ("document_bytes", "bytes"))
    ]


def _tokens(shown: Sequence[_ShownSplit], decoder: TextDecoder) -> dict[str, Any]:
    """Counts tokens over all splits: totals, the most frequent tokens and the special tokens."""
    counts = np.sum([split.token_counts for split in shown], axis=0)
    total = max(1, int(counts.sum()))
    order = np.argsort(-counts, kind="stable")
    used = int((counts > 0).sum())

    def described(token: int) -> dict[str, Any]:
        times = int(counts[token])
        return {"id": token, "text": decoder.label(token), "times": times, "share": times / total}

    special = shown[0].split.manifest["tokenizer"]["special_token_ids"]
    return {
        "used": used,
        "vocabulary": len(counts),
        "needed_for": (
            np.searchsorted(np.cumsum(counts[order]), [total * s for s in (0.5, 0.9, 0.99)]) + 1
        ).tolist(),
        "top": [described(token) for token in order[: min(_TOP_TOKENS, used)].tolist()],
        "special": [(name, described(token)) for name, token in sorted(special.items()) if token is not None],
    }


def _charts(shown: Sequence[_ShownSplit]) -> dict[str, Markup | None]:
    """Returns the charts of all splits together. None replaces one with a single column, or with none."""
    max_length = shown[0].split.manifest["max_length"]

    def chart(name: str, **attributes: Any) -> Markup | None:
        histograms = comparable([split.histogram(name) for split in shown])
        used = {index for each in histograms for index, times in enumerate(each.counts) if times}
        return histogram_chart(histograms, **attributes) if len(used) > 1 else None

    return {
        "document_tokens": chart(
            "document_tokens",
            x_label="tokens in a document",
            unit="documents",
            log=True,
            marker=None if max_length is None else (max_length, f"a row: {max_length:,}"),
        ),
        "document_bytes": chart("document_bytes", x_label="bytes in a document", unit="documents", log=True),
        "zipf": log_log_chart(
            [_zipf(split) for split in shown],
            x_label="rank of the token",
            y_label="share of all tokens",
            slope=-1.0,
        ),
        "bytes_per_token": chart(
            "document_bytes_per_token", x_label="bytes per token, in a document", unit="documents"
        ),
        "row_fill": histogram_chart(
            [split.histogram("row_fill", scale=100) for split in shown],
            x_label="% of a row's slots that contain tokens",
            unit="rows",
        )
        if any(split.statistics["fill"] < _FULL and split.totals["rows"] > 1 for split in shown)
        else None,
        **_target_charts([split for split in shown if split.totals.get("targets")]),
    }


def _target_charts(shown: Sequence[_ShownSplit]) -> dict[str, Markup | None]:
    """Returns the charts that only conversations have."""
    if not shown:
        return dict.fromkeys(TARGET_HISTOGRAMS)
    return {
        "document_turns": histogram_chart(
            [_around_integers(split.histogram("document_turns")) for split in shown],
            x_label="trained turns in a conversation",
            unit="conversations",
        ),
        "row_targets": histogram_chart(
            [split.histogram("row_targets", scale=100) for split in shown],
            x_label="% of a row's slots that are targets",
            unit="rows",
        ),
    }


def _around_integers(histogram: Histogram) -> Histogram:
    """Returns a histogram of integers above 0, whose bins begin and end between them."""
    return Histogram(histogram.name, [0.5, *(edge - 0.5 for edge in histogram.edges[1:])], histogram.counts)


def _zipf(split: _ShownSplit) -> Curve:
    """Returns the tokens' shares by rank, at ranks that are evenly spaced on a logarithmic axis."""
    counts = np.sort(split.token_counts[split.token_counts > 0])[::-1]
    if not len(counts):
        return Curve(split.name, [], [])
    ranks = np.unique(np.geomspace(1, len(counts), 160).round().astype(np.int64))
    return Curve(split.name, ranks.tolist(), (counts[ranks - 1] / counts.sum()).tolist())
