"""A function of `--filter` that the engines' workers import."""

from __future__ import annotations


def few_digits(texts: list[str], columns: dict[str, list]) -> dict[str, list]:
    """Keeps texts of which less than a twentieth is digits."""
    shares = [sum(map(str.isdigit, text)) / len(text) for text in texts]
    return {"keep": [share < 0.05 for share in shares], "value": shares, "digits": shares}
