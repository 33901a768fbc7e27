"""Masks personal data in texts: e-mail addresses, public IP addresses and phone numbers.

The patterns of e-mail and IP addresses are those of datatrove's PIIFormatter. Phone numbers are recognized only with a
country code, as +49 30 123456, or in the form of North America, since other numbers look alike.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from beam_pipeline.curation.decisions import Decided
from beam_pipeline.curation.removals import PII, Removals
from beam_pipeline.sources.units import DocumentBatch, WorkUnit

SPANS = "spans"
"""The key of the spans in the evidence: [first character, the one after the last, kind] of each."""

MASKS = {"email": "<email>", "ip": "<ip>", "phone": "<phone>"}
"""What replaces personal data, by its kind."""

# Bounded: otherwise, the time would grow with the square of a text such as base64.
_WORD = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,64}"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_BYTE = r"(?:25[0-5]|2[0-4][0-9]|[01]?[0-9][0-9]?)"
_EMAIL = re.compile(rf"\b{_WORD}(?:\.{_WORD}){{0,8}}@(?:{_LABEL}\.)+{_LABEL}")
_IP = re.compile(rf"(?:{_BYTE}\.){{3}}{_BYTE}")
_PHONE = re.compile(
    r"(?<![\w.+])\+[1-9]\d{0,2}(?:[ .-]?\(?\d{1,4}\)?){2,5}(?![\w-])"
    r"|(?<![\w.+-])(?:\(\d{3}\) ?|\d{3}[.-])\d{3}[.-]\d{4}(?![\w-])"
)
_DIGITS_OF_PHONE = range(8, 16)


@dataclass(frozen=True)
class Span:
    """A place of personal data in a text, in characters."""

    start: int
    end: int
    kind: str
    """One of `MASKS`."""


def spans(text: str) -> list[Span]:
    """Returns the personal data of a text, in order and without overlaps.

    >>> [(text.start, text.kind) for text in spans("Mail jo@example.com, +49 30 123456 or 8.8.8.8 (not 10.0.0.1).")]
    [(5, 'email'), (21, 'phone'), (38, 'ip')]
    """
    result: list[Span] = []
    for span in sorted(_all_spans(text), key=lambda span: (span.start, -span.end)):
        if not result or span.start >= result[-1].end:
            result.append(span)
    return result


def _all_spans(text: str) -> Iterator[Span]:
    if "@" in text:
        for match in _EMAIL.finditer(text):
            yield Span(*match.span(), "email")
    if text.count(".") >= 3:
        for match in _IP.finditer(text):
            if _is_public(match[0]):
                yield Span(*match.span(), "ip")
    for match in _PHONE.finditer(text):
        if sum(map(str.isdigit, match[0])) in _DIGITS_OF_PHONE:
            yield Span(*match.span(), "phone")


def _is_public(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_global
    except ValueError:  # such as 8.8.8.08
        return False


def masked(text: str, found_spans: list[Span]) -> str:
    """Replaces spans of a text by the masks of their kinds."""
    pieces, end = [], 0
    for span in found_spans:
        pieces += [text[end : span.start], MASKS[span.kind]]
        end = span.end
    return "".join([*pieces, text[end:]])


def count_spans(texts: list[str]) -> dict[str, np.ndarray]:
    """Returns the number of spans of each kind in each text, float64 [texts], by the name of an attribute."""
    kinds = [[span.kind for span in spans(text)] for text in texts]
    return {
        f"pii_{kind}": np.array([text_kinds.count(kind) for text_kinds in kinds], float) for kind in MASKS
    }


class MaskPersonalData:
    """Edits texts. See `decisions.Decision`.

    The evidence has the spans that it masks, in characters of the text that it gets, but not what they contain.
    """

    def __call__(self, unit: WorkUnit, batch: DocumentBatch, first: int) -> Decided:
        all_spans = list(map(spans, batch.texts))
        if not any(all_spans):
            return Decided()
        edited = [index for index, text_spans in enumerate(all_spans) if text_spans]
        evidence = [
            {SPANS: [[span.start, span.end, span.kind] for span in all_spans[index]]} for index in edited
        ]
        counts = [float(len(all_spans[index])) for index in edited]
        edits = Removals.of_rule(PII, np.array(edited), counts, evidence)
        return Decided(edits, list(map(masked, batch.texts, all_spans)))
