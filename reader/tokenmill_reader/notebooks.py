"""How a notebook shows rows: a table, with the text of the first tokens if the tokenizer is there.

Texts, paths and features come from files of unknown origin. Everything is escaped.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from tokenmill_reader.console.escaping import visible

ROWS = 3
"""Rows that are shown."""
_TOKENS = 48

Decode = Callable[[Sequence[int]], str]


def make_decode(tokenizer_json: bytes | None) -> Decode | None:
    """Returns a function from ids to their text.

    Returns:
        None if there is no tokenizer, it cannot be loaded, or the package `tokenizers` is not installed.
    """
    if tokenizer_json is None:
        return None
    try:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_str(tokenizer_json.decode())
    except Exception:  # `tokenizers` raises plain Exception
        return None
    return lambda ids: tokenizer.decode(list(ids), skip_special_tokens=False)


def rows_table(
    caption: str, rows: Iterable[tuple[int, Mapping[str, np.ndarray]]], decode: Decode | None
) -> str:
    """Returns an HTML table of rows.

    Args:
        caption: Describes the data.
        rows: The number and the values of each row, int32[max_length] by feature.
        decode: Returns the text of ids; None: the ids are shown.
    """
    lines = [f"<tr><th>row</th><th>tokens</th><th>first {_TOKENS} tokens</th></tr>"]
    for number, row in rows:
        ids = row["input_ids"]
        length = int(row["attention_mask"].sum()) if "attention_mask" in row else ids.size
        first_ids = ids[: min(length, _TOKENS)].tolist()
        shown = " ".join(map(str, first_ids)) if decode is None else decode(first_ids)
        more = "…" if length > _TOKENS else ""
        cells = f"<td>{number:,}</td><td>{length:,}</td>"
        lines.append(
            f'<tr>{cells}<td style="text-align: left; white-space: pre-wrap">{_escaped(shown)}{more}</td></tr>'
        )
    return f"<table><caption>{_escaped(caption)}</caption>{''.join(lines)}</table>"


def message(text: str) -> str:
    """Returns a paragraph of HTML."""
    return f"<p>{_escaped(text)}</p>"


def _escaped(text: str) -> str:
    return html.escape(visible(text))
