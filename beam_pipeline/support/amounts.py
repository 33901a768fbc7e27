"""Formats counts and sizes for messages."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Formats a count of things: 1 → 1 shard, 1200 → 1,200 shards."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def megabytes(size: float) -> str:
    """Formats a size in bytes: 1234567 → 1.2 MB; in a smaller unit if it is below a tenth of a megabyte."""
    return f"{size / 1e6:,.1f} MB" if size >= 1e5 else human_bytes(size)


def human_bytes(size: float) -> str:
    """Formats a size in bytes: 1234567 → 1.23 MB."""
    if size < 1000:
        return f"{size:.0f} B"
    for unit in ("kB", "MB", "GB", "TB"):
        size /= 1000
        if size < 999.5:
            return f"{size:.3g} {unit}"
    return f"{size / 1000:,.3g} PB"
