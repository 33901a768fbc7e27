"""Measures what a tokenizer keeps of real documents: they are encoded, and their ids decoded again."""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from beam_pipeline.engines.failures import hidden_panics
from beam_pipeline.engines.hf import reference_tokenizer
from beam_pipeline.support.amounts import counted
from beam_pipeline.support.errors import DataError
from beam_pipeline.tokenization.control_tokens import tokenizer_for_text
from beam_pipeline.tokenization.library_errors import EncodingError, library_errors
from beam_pipeline.tokenization.tokenizer_json import load_tokenizer
from beam_pipeline.views.decoding import TextDecoder
from tokenmill_reader.console.escaping import visible

# Only the beginning of a longer document is measured.
_MAX_CHARS = 8 << 10

# Characters of a passage before and after the first difference.
_BEFORE, _AFTER = 20, 40

_LINE_BREAK = re.compile("[\n\r\v\f\x85\u2028\u2029]")
_PARTS = re.compile(r"\s+|\S")
_WORTH_SHOWING = re.compile(r"\n|\t|\s{2}")
_INVISIBLE = re.compile(r"[^\S ]|(?<= ) | (?= )")

# A text of all kinds that tokenizers change: line breaks, tabs, runs of white space, white space at both ends, composed
# and compatibility characters, capital letters, accents, an emoji of several characters, control characters.
_PROBE = " \tA\n\n  b  é e\u0301 ﬁ① Ⅷ\u00a0漢字 한 क्षि x\u3000▁y 👩\u200d💻 \x01\x7f \r\n "

LINE_BREAKS, WHITE_SPACE, CHARACTERS = "line breaks", "other white space", "other characters"


@dataclass
class RoundTrip:
    """How much of some documents their decoded ids give back.

    A run of white space that changes counts as lost, and so does a character that occurs less often than before.
    """

    documents: int = 0
    changed: int = 0
    """Documents that are not the same afterwards."""
    characters: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    """Kind of characters → how many are lost."""
    _example: tuple[str, ...] = ()
    _is_telling: bool = False

    @property
    def example(self) -> str:
        """A passage of a document before and after, escaped for a terminal; its first difference, if there is any."""
        if not self._example:
            return ""
        before, after = self._example
        return f"'{before}' → " + (f"'{after}'" if self.changed else "the same")

    def add(self, text: str, decoded: str) -> None:
        """Counts a document."""
        self.documents += 1
        self.characters += len(text)
        if text == decoded:
            match = _WORTH_SHOWING.search(text)
            if not self._example or (match and not self._is_telling):
                self._example = (_passage(text, match.start() if match else 0),) * 2
                self._is_telling = bool(match)
            return
        if not self.changed:
            same = len(os.path.commonprefix([text, decoded]))  # noqa: RUF071 (these are no paths)
            self._example = _passage(text, same), _passage(decoded, same)
        self.changed += 1
        for part, count in (Counter(_PARTS.findall(text)) - Counter(_PARTS.findall(decoded))).items():
            breaks = len(_LINE_BREAK.findall(part)) * count
            self.lost[LINE_BREAKS] += breaks
            self.lost[WHITE_SPACE if part.isspace() else CHARACTERS] += len(part) * count - breaks

    def describe(self) -> str:
        """Describes the loss: shares of documents and characters."""
        if not self.changed:
            return f"nothing is lost in a sample of {counted(self.documents, 'document')}"
        changed = self.changed / max(1, self.documents)
        shares = {kind: count / max(1, self.characters) for kind, count in self.lost.most_common()}
        kinds = ", ".join(f"{kind} {share:.2%}" for kind, share in shares.items() if share)
        return (
            f"{changed:.1%} of {counted(self.documents, 'document')} in a sample change, and "
            f"{sum(shares.values()):.2%} of the characters are lost" + (f" ({kinds})" if kinds else "")
        )

    def to_json(self) -> dict[str, Any]:
        """Returns the counts, for a manifest, without the example."""
        return {
            "documents": self.documents,
            "changed": self.changed,
            "characters": self.characters,
            "lost": {kind: count for kind, count in sorted(self.lost.items()) if count},
        }

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> RoundTrip:
        """Inverts `to_json`."""
        lost = Counter({kind: entry["lost"].get(kind, 0) for kind in (LINE_BREAKS, WHITE_SPACE, CHARACTERS)})
        return cls(entry["documents"], entry["changed"], entry["characters"], lost)


def measure(
    tokenizer_json: str,
    texts: Iterable[str],
    *,
    parse_special_tokens: bool = False,
    control_ids: Collection[int] = (),
) -> RoundTrip:
    """Encodes and decodes the beginning of each text, without the template.

    Texts that cannot be encoded are left out. Nothing is measured if the ids cannot be decoded.

    Args:
        tokenizer_json: The content of the tokenizer's `tokenizer.json`.
        texts: The documents.
        parse_special_tokens: Whether special tokens in a text are parsed.
        control_ids: See `tokenizer_for_text`.
    """
    result = RoundTrip()
    options = {"parse_special_tokens": parse_special_tokens}
    parsed = tokenizer_for_text(tokenizer_json, control_ids=control_ids, **options)
    # Not an engine, since the first one of a process determines the number of threads.
    tokenizer = reference_tokenizer(parsed, **options)
    try:
        decoder = TextDecoder(tokenizer_json)
    except ValueError:
        return result
    with hidden_panics():
        for text in texts:
            text = text[:_MAX_CHARS]
            with contextlib.suppress(EncodingError, DataError), library_errors():
                ids = tokenizer.encode(text, add_special_tokens=False).ids
                result.add(text, decoder.text(ids))
    return result


def keeps_text(tokenizer_json: str) -> bool:
    """Determines whether text of all kinds that tokenizers change survives. Loads no second tokenizer."""
    with hidden_panics(), contextlib.suppress(EncodingError, DataError), library_errors():
        ids = load_tokenizer(tokenizer_json).tokenizer.encode(_PROBE, add_special_tokens=False).ids
        return TextDecoder(tokenizer_json).text(ids) == _PROBE
    return False


def _passage(text: str, position: int) -> str:
    """Returns a short passage around a position, in one line, with all white space visible but single spaces."""
    start, end = max(0, position - _BEFORE), position + _AFTER
    shown = visible(_INVISIBLE.sub(_shown, text[start:end].replace("\\", r"\\")))
    return f"{'…' * (start > 0)}{shown}{'…' * (len(text) > end)}"


def _shown(match: re.Match[str]) -> str:
    return "␣" if match[0] == " " else match[0].encode("unicode_escape").decode()
