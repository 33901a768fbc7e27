"""FineWeb's own rules (Penedo et al. 2024, arXiv:2406.17557, section 3.5), as datatrove's FineWebQualityFilter."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from beam_pipeline.curation.measuring import Limit, Measured, MeasuredTexts, Rule, ratio
from beam_pipeline.curation.punctuation import TERMINAL
from beam_pipeline.curation.repetition import repeated_characters


def measure(texts: MeasuredTexts, settings: Mapping[str, float]) -> Measured:
    """Measures lines: how many end with punctuation, are short, or repeat others, and how many there are a word."""
    short = int(settings["short_line"])
    ended, short_lines, repeated = np.array([_shares(text, short) for text in texts.texts]).reshape(-1, 3).T
    line_ends = np.fromiter((text.count("\n") for text in texts.texts), np.int64, len(texts.texts))
    return Measured(
        {
            "fineweb_ended_lines": ended,
            "fineweb_short_lines": short_lines,
            "fineweb_repeated_characters": repeated,
            "fineweb_line_ends": ratio(line_ends, texts.words.counts),
        }
    )


def _shares(text: str, short: int) -> tuple[float, float, float]:
    lines = [line for line in text.split("\n") if line and not line.isspace()]
    count = max(1, len(lines))
    ended = sum(line[-1] in TERMINAL for line in lines)
    short_lines = sum(len(line) <= short for line in lines)
    return (
        ended / count,
        short_lines / count,
        repeated_characters(lines) / max(1, len(text) - text.count("\n")),
    )


RULE = Rule(
    "fineweb",
    measure,
    (
        Limit("min_ended_lines", "fineweb_ended_lines", 0.12),
        Limit("max_short_lines", "fineweb_short_lines", 0.67),
        Limit("max_repeated_characters", "fineweb_repeated_characters", 0.01),
        Limit("max_line_ends", "fineweb_line_ends", 0.3),
    ),
    {"short_line": 30},
)
