"""The rules of C4 (Raffel et al. 2020, JMLR 21/140, section 2.2), as datatrove's C4QualityFilter.

Lines without a sentence's end, with few words, with a huge word, or about JavaScript, cookies and terms of use are
removed, and so are texts with few sentences in the other lines, with "lorem ipsum", or with a curly bracket. The list
of bad words is not part of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from beam_pipeline.curation.measuring import Limit, Measured, MeasuredTexts, Rule

_CITATION = re.compile(r"\[\d*]|\[edit]|\[citation needed]")
_ENDS = (".", "?", "!", '"', "'")
_POLICIES = (
    "terms of use",
    "privacy policy",
    "cookie policy",
    "uses cookies",
    "use of cookies",
    "use cookies",
)
_LOREM_IPSUM, _CURLY_BRACKET = 1, 2


def measure(texts: MeasuredTexts, settings: Mapping[str, float]) -> Measured:
    """Removes lines, and counts the sentences of the others. Its texts are empty where it finds a forbidden phrase."""
    kept_lines, marks = [], np.zeros(len(texts.texts), np.int64)
    for index, text in enumerate(texts.texts):
        lines, marks[index] = _kept(text, settings)
        kept_lines.append(lines)
    sentences = texts.splitter.count_sentences([line for lines in kept_lines for line in lines])
    bounds = np.cumsum([0, *map(len, kept_lines)])
    totals = np.concatenate([[0], np.cumsum(sentences)])[bounds]
    return Measured(
        {
            "c4_lorem_ipsum": (marks == _LOREM_IPSUM).astype(float),
            "c4_curly_bracket": (marks == _CURLY_BRACKET).astype(float),
            "c4_sentences": np.diff(totals).astype(float),
        },
        ["\n".join(lines).strip() for lines in kept_lines],
    )


def _kept(text: str, settings: Mapping[str, float]) -> tuple[list[str], int]:
    """Returns the lines that are kept, and the mark of a text with a forbidden phrase, which has none."""
    ends_with_mark, least_words = bool(settings["ended_lines"]), settings["words_per_line"]
    longest = settings["longest_word"]
    kept = []
    for line in text.splitlines():
        line = line.strip()
        words = line.split()
        if len(line) > longest and any(len(word) > longest for word in words):
            continue
        if "[" in line:
            line = _CITATION.sub("", line)
        if ends_with_mark and (not line.endswith(_ENDS) or line.endswith("...")):
            continue
        if len(words) < least_words:
            continue
        lower = line.lower()
        if "lorem ipsum" in lower:
            return [], _LOREM_IPSUM
        if "javascript" in lower:
            continue
        if "{" in line:
            return [], _CURLY_BRACKET
        if any(policy in lower for policy in _POLICIES):
            continue
        kept.append(line)
    return kept, 0


RULE = Rule(
    "c4",
    measure,
    (
        Limit("max_lorem_ipsum", "c4_lorem_ipsum", 0),
        Limit("max_curly_bracket", "c4_curly_bracket", 0),
        Limit("min_sentences", "c4_sentences", 5),
    ),
    {"ended_lines": 1, "words_per_line": 3, "longest_word": 1000},
)
