"""Pieces of HTML, and figures in words, as the report's sections are made of. Text given to them is HTML already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from beam_pipeline.views.charts import short
from beam_pipeline.views.decoding import visible


def human_bytes(size: float) -> str:
    """1234567 → 1.23 MB."""
    if size < 1000:
        return f"{size:.0f} B"
    for unit in ("kB", "MB", "GB", "TB"):
        size /= 1000
        if size < 999.5:
            return f"{size:.3g} {unit}"
    return f"{size / 1000:,.3g} PB"


def figure(count: int) -> str:
    """A count, in full where that is short."""
    return f"{count:,}" if count < 10**6 else short(count)


def plain(value: Any) -> str:
    """An option's value in words."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={plain(part)}" for name, part in value.items() if part is not None)
    if isinstance(value, list):
        return ", ".join(
            " * ".join(map(plain, part)) if isinstance(part, list) else plain(part) for part in value
        )
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else visible(str(value), one_line=True)


def key(number: int) -> str:
    """A split's colour."""
    return f'<span class="key k{number % 6}"></span>'


def card(title: str, *content: str) -> str:
    return f'<div class="card scroll"><h3>{title}</h3>{"".join(content)}</div>'


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, wrap: bool = False) -> str:
    """A table of cells that are HTML already; `wrap` breaks the first column's lines."""
    head = "".join(f"<th>{cell}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table{' class=wrap' * wrap}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
