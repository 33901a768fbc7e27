"""Recognizes source code and the like, which is shown in a font of equal widths."""

from __future__ import annotations

import re

_EXTENSIONS = re.compile(
    r"\.(py|pyi|ipynb|js|mjs|jsx|ts|tsx|c|h|cc|cpp|hpp|cu|rs|go|java|kt|scala|swift|rb|php|pl|lua|r|jl|sh|bash|sql|css|"
    r"html?|xml|json|ya?ml|toml|ini|cfg|tex|proto|cmake|diff|patch)(\.(gz|bz2|zst|xz|lz4))?\Z",
    re.IGNORECASE,
)
_MOST_CHARACTERS = 4000
_FEWEST_LINES = 4
_SHARE = 0.3


def is_code(text: str, name: str = "") -> bool:
    r"""Returns whether a text looks like code: by its file's name, or by its lines, of which many are indented.

    >>> is_code("def f(x):\n    if x:\n        return 1\n    return 2\n"), is_code("Some prose.\nIt has lines.\n" * 5)
    (True, False)

    Args:
        text: The text, or its beginning.
        name: The name of the file that it came from, if it is known.
    """
    if _EXTENSIONS.search(name):
        return True
    lines = [line for line in text[:_MOST_CHARACTERS].split("\n") if line.strip()]
    indented = sum(line.startswith(("  ", "\t")) or line.rstrip().endswith(("{", "}", ";")) for line in lines)
    return len(lines) >= _FEWEST_LINES and indented >= _SHARE * len(lines)
