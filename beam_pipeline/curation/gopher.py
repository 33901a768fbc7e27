"""The quality rules of Gopher (Rae et al. 2021, arXiv:2112.11446, appendix A1.1), for English.

Details that the paper leaves open are those of datatrove's GopherQualityFilter: words are spaCy's, and words of mere
symbols are not counted as words where the number and the length of words matter.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from beam_pipeline.curation.measuring import Limit, Measured, MeasuredTexts, Rule, ratio
from beam_pipeline.curation.words import HAS_LETTER, IS_SYMBOL, STOP_WORDS

_ELLIPSES = ("...", "…")


def measure(texts: MeasuredTexts, settings: Mapping[str, float]) -> Measured:
    """Measures words, symbols and lines."""
    words = texts.words
    no_symbol = (words.flags & IS_SYMBOL) == 0
    num_words = words.sums(no_symbol)
    hashes, ellipses, bullet_lines, ellipsis_lines = (
        np.array([_counts(text) for text in texts.texts]).reshape(-1, 4).T
    )
    stop_words = np.zeros(len(texts.texts), np.int64)
    for bit in range(len(STOP_WORDS)):
        stop_words += words.sums((words.stop_words >> bit) & 1) > 0
    return Measured(
        {
            "gopher_words": num_words.astype(float),
            "gopher_word_length": ratio(words.sums(words.lengths * no_symbol), num_words),
            "gopher_hashes": ratio(hashes, words.counts),
            "gopher_ellipses": ratio(ellipses, words.counts),
            "gopher_bullet_lines": bullet_lines,
            "gopher_ellipsis_lines": ellipsis_lines,
            "gopher_letter_words": ratio(words.sums((words.flags & HAS_LETTER) > 0), words.counts),
            "gopher_stop_words": stop_words.astype(float),
        }
    )


def _counts(text: str) -> tuple[float, float, float, float]:
    """Returns the numbers of hashes and of ellipses, and the shares of lines with a bullet and with an ellipsis."""
    ellipses = sum(map(text.count, _ELLIPSES))
    lines = text.splitlines()
    bullets = sum(line.lstrip().startswith(("•", "-")) for line in lines) if "•" in text or "-" in text else 0
    ended = sum(line.rstrip().endswith(_ELLIPSES) for line in lines) if ellipses else 0
    return text.count("#"), ellipses, bullets / max(1, len(lines)), ended / max(1, len(lines))


RULE = Rule(
    "gopher",
    measure,
    (
        Limit("min_words", "gopher_words", 50),
        Limit("max_words", "gopher_words", 100_000),
        Limit("min_word_length", "gopher_word_length", 3),
        Limit("max_word_length", "gopher_word_length", 10),
        Limit("max_hashes", "gopher_hashes", 0.1),
        Limit("max_ellipses", "gopher_ellipses", 0.1),
        Limit("max_bullet_lines", "gopher_bullet_lines", 0.9),
        Limit("max_ellipsis_lines", "gopher_ellipsis_lines", 0.3),
        Limit("min_letter_words", "gopher_letter_words", 0.8),
        Limit("min_stop_words", "gopher_stop_words", 2),
    ),
    {},
)
