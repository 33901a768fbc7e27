"""The verb `report`: a dataset's figures and some of its rows as one HTML page, which needs nothing but itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from importlib.resources import files
from typing import Any

import numpy as np

from beam_pipeline import filesystem
from beam_pipeline.dataset import lock
from beam_pipeline.dataset import manifest as manifests
from beam_pipeline.dataset.own_files import is_own_page, signed_page
from beam_pipeline.errors import DataError
from beam_pipeline.options import parse_report
from beam_pipeline.views.charts import Curve, Histogram, column_chart, histogram_chart, log_log_chart
from beam_pipeline.views.decoding import RowDecoder, visible
from beam_pipeline.views.html_elements import card, figure, human_bytes, key, plain, table
from beam_pipeline.views.reading import Split, open_dataset
from beam_pipeline.views.report_rows import row_sections

_QUANTILES = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99)
_TOP_TOKENS = 40
_MOST_INPUTS = 20
_FULL = 0.995  # from here on there is nothing to see in a histogram of the rows' fill


def main(argv: Sequence[str]) -> None:
    """Runs the verb with these arguments.

    Raises:
      DataError: where it is no finished dataset.
    """
    dataset = filesystem.absolute(parse_report(argv))
    with lock.hold_dataset(dataset, verb="report"):
        print(write_report(dataset))


def write_report(dataset: str) -> str:
    """Writes `report.html` into the folder of a dataset or of one split; returns its path.

    Raises:
      DataError: where that is no finished dataset.
    """
    path = filesystem.join(dataset, manifests.REPORT)
    page = signed_page(build_report(open_dataset(dataset)))
    if filesystem.exists(path) and not is_own_page(filesystem.read_bytes(path)):
        raise DataError(f"{path}: was not written by this program, or was changed since; move it away")
    filesystem.write_bytes(path, page)
    return path


def build_report(splits: Sequence[Split]) -> bytes:
    """The page, the same bytes for the same dataset (and as much of its source as is still there)."""
    shown = [_Shown(split, split.statistics()) for split in splits]
    decoder = RowDecoder(splits[0].tokenizer_json())
    css = files("beam_pipeline").joinpath("report.css").read_text(encoding="utf-8")
    body = "\n".join(
        [
            *_head(shown),
            *_splits(shown),
            *_documents(shown),
            *_tokens(shown, decoder),
            *_rows_and_shards(shown),
            *row_sections(splits, decoder),
            *_making(splits),
        ]
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>Dataset report</title>\n<style>\n{css}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n</body>\n"
        "</html>\n"
    ).encode()


@dataclass(frozen=True)
class _Shown:
    """A split and its statistics."""

    split: Split
    statistics: Mapping[str, Any]

    @property
    def name(self) -> str:
        return escape(self.split.name)

    @property
    def totals(self) -> Mapping[str, int]:
        return self.split.manifest["totals"]

    @cached_property
    def token_counts(self) -> np.ndarray:
        return np.array(self.statistics["token_counts"], np.int64)

    def histogram(self, name: str) -> Histogram:
        found = self.statistics[name]
        return Histogram(self.split.name, found["edges"], found["counts"])


def quantile(histogram: Histogram, share: float) -> float:
    """About the value that `share` of the counted ones are below, as if they lay evenly within each bin."""
    counts = np.array(histogram.counts, np.float64)
    wanted = share * counts.sum()
    index = min(int(np.searchsorted(np.cumsum(counts), wanted)), len(counts) - 1)
    low, high = histogram.edges[index], histogram.edges[index + 1]
    before = counts[:index].sum()
    return low + (high - low) * (wanted - before) / max(counts[index], 1)


def _head(shown: Sequence[_Shown]) -> Iterator[str]:
    total = {name: sum(one.totals[name] for one in shown) for name in shown[0].totals}
    first = shown[0].split.manifest
    tokens = max(1, total["tokens"])
    yield "<header>"
    yield "<h1>Dataset report</h1>"
    names = ", ".join(one.name for one in shown)
    yield (
        f"<p>Rows of {first['max_length']:,} tokens, {first['config']['packing']} packing, "
        f"a vocabulary of {first['tokenizer']['vocab_size']:,}. Splits: {names}.</p>"
    )
    yield '<div class="figures">'
    for value, label, exact in (
        (figure(total["documents"]), "documents", f"{total['documents']:,}"),
        (human_bytes(total["bytes"]), "of text", f"{total['bytes']:,} bytes"),
        (figure(total["tokens"]), "tokens", f"{total['tokens']:,}"),
        (figure(total["rows"]), f"rows of {first['max_length']:,}", f"{total['rows']:,}"),
        (f"{total['bytes'] / tokens:.2f}", "bytes a token", None),
        (f"{tokens / max(1, total['documents']):,.1f}", "tokens a document", None),
        (
            f"{total['tokens'] / max(1, total['tokens'] + total['padding']):.2%}",
            "of rows filled",
            None,
        ),
    ):
        title = f' title="{exact}"' if exact else ""
        yield f'<div class="figure"{title}><b>{value}</b><span>{label}</span></div>'
    yield "</div>"
    yield "</header>"


def _splits(shown: Sequence[_Shown]) -> Iterator[str]:
    yield "<h2>Splits</h2>"
    header = (
        "split",
        "documents",
        "text",
        "tokens",
        "share",
        "rows",
        "bytes per token",
        "entropy",
        "shards",
        "on disk",
    )
    rows = []
    all_tokens = max(1, sum(one.totals["tokens"] for one in shown))
    for number, one in enumerate(shown):
        totals, shards = one.totals, one.split.manifest["shards"]
        rows.append(
            (
                f"{key(number)}{one.name}",
                f"{totals['documents']:,}",
                human_bytes(totals["bytes"]),
                f"{totals['tokens']:,}",
                f"{totals['tokens'] / all_tokens:.2%}",
                f"{totals['rows']:,}",
                f"{totals['bytes'] / max(1, totals['tokens']):.3f}",
                f"{one.statistics['unigram_entropy']:.3f} nats",
                f"{len(shards):,}",
                human_bytes(sum(shard["bytes"] for shard in shards)),
            )
        )
    note = (
        '<p class="note">Entropy is that of the token frequencies: the loss of a model that knows them and nothing '
        "else. A trained model must end below it.</p>"
    )
    yield f'<div class="card scroll">{table(header, rows)}{note}</div>'


def _documents(shown: Sequence[_Shown]) -> Iterator[str]:
    yield "<h2>Documents</h2>"
    max_length = shown[0].split.manifest["max_length"]
    yield '<div class="grid">'
    for name, unit, marker in (
        ("document_tokens", "tokens", (max_length, f"a row: {max_length:,}")),
        ("document_bytes", "bytes", None),
    ):
        histograms = [one.histogram(name) for one in shown]
        chart = histogram_chart(
            histograms, x_label=f"{unit} in a document", of="documents", log=True, marker=marker
        )
        yield card(f"Length in {unit}", _legend(shown), chart)
    yield "</div>"
    header = ("length", *(f"{100 * share:g}%" for share in _QUANTILES), "longest", "mean")
    rows = []
    for number, one in enumerate(shown):
        for name, unit in (("document_tokens", "tokens"), ("document_bytes", "bytes")):
            histogram = one.histogram(name)
            rows.append(
                (
                    f"{key(number)}{one.name}, in {unit}",
                    *(f"{quantile(histogram, share):,.0f}" for share in _QUANTILES),
                    f"{one.statistics[name]['max']:,}",
                    f"{one.statistics[name]['mean']:,.1f}",
                )
            )
    note = '<p class="note">Quantiles are read off the histograms, so they are right to within a bin.</p>'
    yield card("Quantiles", table(header, rows), note)


def _tokens(shown: Sequence[_Shown], decoder: RowDecoder) -> Iterator[str]:
    counts = np.sum([one.token_counts for one in shown], axis=0)
    total = max(1, int(counts.sum()))
    order = np.argsort(-counts, kind="stable")
    used = int((counts > 0).sum())
    reached = np.searchsorted(np.cumsum(counts[order]), [total * share for share in (0.5, 0.9, 0.99)]) + 1
    yield "<h2>Tokens</h2>"
    yield (
        f"<p>{used:,} of the {len(counts):,} tokens occur. The {reached[0]:,} most frequent ones make up half of the "
        f"data, {reached[1]:,} make up 90%, and {reached[2]:,} make up 99%.</p>"
    )
    curves = [_zipf(one) for one in shown]
    zipf = log_log_chart(curves, x_label="rank of the token", y_label="share of all tokens", slope=-1.0)
    ratios = [one.histogram("document_bytes_per_token") for one in shown]
    per_token = histogram_chart(ratios, x_label="bytes a token, in a document", of="documents")
    yield '<div class="grid"><div class="stack">'
    yield card("Frequency by rank (dashed: Zipf's law, 1 ÷ rank)", _legend(shown), zipf)
    yield card("Bytes a token stands for", _legend(shown), per_token)
    yield '</div><div class="stack">'
    largest = max(1, int(counts[order[0]]))
    items = [
        f'<li title="id {token}, {int(counts[token]):,} times"><code>{_token_text(decoder, token)}</code>'
        f'<div class="bar"><i class="k0" style="width:{100 * counts[token] / largest:.1f}%"></i></div>'
        f"<em>{counts[token] / total:.2%}</em></li>"
        for token in order[: min(_TOP_TOKENS, used)].tolist()
    ]
    yield card("The most frequent tokens", f'<ol class="tokens">{"".join(items)}</ol>')
    special = shown[0].split.manifest["tokenizer"]["special_token_ids"]
    rows = [
        (
            escape(name),
            f"<code>{_token_text(decoder, token)}</code>",
            f"{token:,}",
            f"{int(counts[token]):,}",
            f"{counts[token] / total:.3%}",
        )
        for name, token in sorted(special.items())
        if token is not None
    ]
    yield card("Special tokens", table(("role", "token", "id", "times", "share"), rows))
    yield "</div></div>"


def _token_text(decoder: RowDecoder, token: int) -> str:
    return escape(visible(decoder.token(token), one_line=True))


def _zipf(one: _Shown) -> Curve:
    """Shares by rank, at ranks that lie evenly on a logarithmic axis."""
    counts = np.sort(one.token_counts[one.token_counts > 0])[::-1]
    if not len(counts):
        return Curve(one.split.name, [], [])
    ranks = np.unique(np.geomspace(1, len(counts), 160).round().astype(np.int64))
    return Curve(one.split.name, ranks.tolist(), (counts[ranks - 1] / counts.sum()).tolist())


def _rows_and_shards(shown: Sequence[_Shown]) -> Iterator[str]:
    yield "<h2>Rows and shards</h2>"
    rows = []
    for number, one in enumerate(shown):
        totals = one.totals
        fill = totals["tokens"] / max(1, totals["tokens"] + totals["padding"])
        bar = f'<div class="bar"><i class="k{number % 6}" style="width:{100 * fill:.2f}%"></i></div>'
        cells = (f"{fill:.3%}", f"{totals['rows']:,}", f"{totals['tokens']:,}", f"{totals['padding']:,}")
        rows.append((f"{key(number)}{one.name}", bar, *cells))
    fills = table(("split", "", "filled", "rows", "tokens", "padding"), rows)
    yield '<div class="grid">'
    yield card("Fill of the rows", fills)
    if any(one.statistics["fill"] < _FULL and one.totals["rows"] > 1 for one in shown):
        shares = []
        for one in shown:
            found = one.histogram("row_fill")
            shares.append(Histogram(found.name, [100 * edge for edge in found.edges], found.counts))
        chart = histogram_chart(shares, x_label="% of a row's positions that hold tokens", of="rows")
        yield card("Rows by their fill", _legend(shown), chart)
    for number, one in enumerate(shown):
        shards = one.split.manifest["shards"]
        sizes = [shard["bytes"] for shard in shards]
        labels = [f"{s['name']}: {s['records']:,} records, {s['bytes']:,} bytes" for s in shards]
        chart = column_chart(sizes, labels, series=number, x_label="shard", y_label="bytes")
        yield card(f"Shards of {one.name}", f'<div class="legend">{_balance(shards)}</div>', chart)
    yield "</div>"


def _balance(shards: Sequence[Mapping[str, Any]]) -> str:
    """How evenly a split's shards are filled, in words."""
    if not shards:
        return "none"
    if len(shards) == 1:
        return f"one, of {shards[0]['records']:,} records"
    full = [shard["bytes"] for shard in shards if shard["records"] == shards[0]["records"]]
    spread = (max(full) - min(full)) / (sum(full) / len(full))
    return (
        f"{len(shards):,} of {shards[0]['records']:,} records, the last of {shards[-1]['records']:,}; full ones differ "
        f"by {spread:.2%} in bytes"
    )


def _making(splits: Sequence[Split]) -> Iterator[str]:
    manifest = splits[0].manifest
    yield "<h2>How it was made</h2>"
    yield '<div class="grid">'
    config = {name: value for name, value in sorted(manifest["config"].items()) if value not in (None, [])}
    rows = [(f"<code>{escape(n)}</code>", f"<code>{escape(plain(v))}</code>") for n, v in config.items()]
    yield card("Options", table(("option", "value"), rows))
    inputs = manifest["inputs"]
    rows = [
        (f"<code>{escape(visible(file['path'], one_line=True))}</code>", human_bytes(file["bytes"]))
        for file in inputs[:_MOST_INPUTS]
    ]
    if len(inputs) > _MOST_INPUTS:
        rest = inputs[_MOST_INPUTS:]
        rows.append((f"… and {len(rest):,} more", human_bytes(sum(file["bytes"] for file in rest))))
    size = human_bytes(sum(file["bytes"] for file in inputs))
    yield '<div class="stack">'
    title = f"{len(inputs):,} input file{'s' * (len(inputs) != 1)}, {size}"
    yield card(title, table(("file", "size"), rows, wrap=True))
    records = manifest["excluded"]["records"]
    rows = [
        (name.replace("_", " "), f"{count:,}", f"{count / max(1, records):.3%}")
        for name, count in sorted(manifest["excluded"].items())
        if name != "records"
    ]
    yield card(f"Left out of {records:,} records", table(("", "records", "share"), rows))
    yield "</div></div>"
    yield (
        f"<footer>fingerprint {escape(manifest['fingerprint'])}<br>tokenizer.json, SHA-256 "
        f"{escape(manifest['tokenizer']['sha256'])}</footer>"
    )


def _legend(shown: Sequence[_Shown]) -> str:
    if len(shown) == 1:
        return ""
    keys = "".join(f"<span>{key(number)}{one.name}</span>" for number, one in enumerate(shown))
    return f'<div class="legend">{keys}</div>'
