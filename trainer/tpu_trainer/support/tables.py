"""Tables as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def table_lines(rows: Sequence[Sequence[str]], *, left: int = 1) -> Iterator[str]:
    """Yields the lines of a table. The first `left` columns are aligned to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.ljust(width) if number < left else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
