"""Text and tokens of a dataset as they are shown: escaped, with control characters visible, and never too much."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup, escape

from beam_pipeline.browsing.filters import Span
from beam_pipeline.views.decoding import DecodedPiece, TextDecoder
from tokenmill_reader.console.escaping import visible

EXCERPT = 360  # characters
_EXCERPT_TOKENS = 160
_BEFORE_MATCH = 120
_MOST_IDS = 8  # in a tooltip; a character has at most four tokens, but a decoder may hold back more
_MOST_BYTES = 48


@dataclass(frozen=True)
class ShownPiece:
    """A piece of text that is one token or, if only together they are a character, several."""

    plain: str
    text: Markup
    """The text, escaped."""
    title: str
    is_special: bool
    is_target: bool


def excerpt(ids: np.ndarray, decoder: TextDecoder) -> Markup:
    """Returns the beginning of a text, from its ids, integers [tokens]."""
    [text] = decoder.texts([ids[:_EXCERPT_TOKENS].tolist()])
    is_cut = len(text) > EXCERPT or len(ids) > _EXCERPT_TOKENS
    return escape(visible(text[:EXCERPT])) + ("…" if is_cut else "")


def excerpt_around(text: str, span: Span) -> Markup:
    """Returns a match with the text around it."""
    start = max(0, span[0] - _BEFORE_MATCH)
    line = text.rfind("\n", start, span[0]) + 1
    start = max(
        start, text.rfind("\n", start, max(start, line - 1)) + 1
    )  # at most one line above that of the match
    middle_end = min(span[1], span[0] + EXCERPT)
    stop = min(len(text), max(start + EXCERPT, middle_end))
    before, matched, after = (
        visible(text[a:b]) for a, b in ((start, span[0]), (span[0], middle_end), (middle_end, stop))
    )
    return Markup("{}{}<mark>{}</mark>{}{}").format(
        "…" * (start > 0 and text[start - 1] != "\n"), before, matched, after, "…" * (stop < len(text))
    )


def shown_pieces(
    ids: Sequence[int],
    first: int,
    decoder: TextDecoder,
    special: frozenset[int],
    targets: np.ndarray | None = None,
) -> list[ShownPiece]:
    """Returns the pieces of consecutive tokens, of which the first has the position `first`.

    `targets`, bool [tokens], are those of the loss.
    """
    return [
        ShownPiece(
            plain=piece.text,
            text=_with_line_ends(visible(piece.text)),
            title=_title(piece, ids[piece.first : piece.end], first, decoder),
            is_special=not special.isdisjoint(ids[piece.first : piece.end]),
            is_target=targets is not None and bool(targets[piece.first]),
        )
        for piece in decoder.pieces(ids)
    ]


def _with_line_ends(text: str) -> Markup:
    """Escapes a text, and marks line ends for the style sheet."""
    return Markup("<u></u>\n").join(text.split("\n"))


def _title(piece: DecodedPiece, ids: Sequence[int], first: int, decoder: TextDecoder) -> str:
    """Describes a piece's tokens: their ids, positions, vocabulary entries and bytes."""
    shown = ids[:_MOST_IDS]
    is_partial = "\ufffd" in piece.text  # of a character
    data = (
        b"".join(map(decoder.token_bytes, shown)) if is_partial else piece.text.encode(errors="surrogatepass")
    )
    begin, end = first + piece.first, first + piece.end - 1
    position = f"position {begin:,}" if begin == end else f"positions {begin:,} to {end:,}"
    more = "…" if len(ids) > len(shown) else ""
    names = " ".join(visible(decoder.token(token), one_line=True) for token in shown)
    return (
        f"id{'s' * (len(ids) > 1)} {' '.join(map(str, shown))}{more} · {position} · {names[:200]}{more} · "
        f"bytes {data[:_MOST_BYTES].hex(' ')}{'…' * (len(data) > _MOST_BYTES)}"
    )
