"""Compares two of HF's tokenizers on texts that contain each of their added tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer

from beam_pipeline.tokenization.library_errors import EncodingError, library_errors
from tokenmill_reader.console.escaping import excerpt

# White space, marks, digits, contractions, other scripts, and what normalizers change.
_TEXTS = (
    "",
    "Hello world, it's 12345 o'clock.",
    " leading  double   spaces\tand tabs \n\n lines ",
    "naïve ﬁancé Ünïcode “quotes” ``ticks'' — x² № ½",
    "漢字かな 한국어 नमस्ते العربية 👩‍👩‍👧",
    "def f(x):\n    return x+1  # ok",
)
# Where an added token begins and ends may depend on the text around it.
_CONTEXTS = ("x{}y", "a {} b", "{}y", "x{}", "{}{}", "{}")


@dataclass(frozen=True)
class Difference:
    """A text to which two tokenizers give different ids."""

    token: str | None
    """The added token in it, if any."""
    text: str
    expected: list[int] | str
    """The ids of the first tokenizer, or the message of the error that it raises."""
    actual: list[int] | str

    def __str__(self) -> str:
        return f"'{excerpt(self.text)}' is {self.actual[:12]} instead of {self.expected[:12]}"


def find_differences(
    expected: Tokenizer, actual: Tokenizer, tokens: Sequence[str], *, as_text: bool = False
) -> Iterator[Difference]:
    """Yields texts to which the tokenizers give different ids: texts of many kinds, and texts with each token.

    Args:
        expected: The reference, without truncation and padding.
        actual: The tokenizer to check, without truncation and padding.
        tokens: Added tokens.
        as_text: Whether to treat special tokens in texts as text, too, instead of parsing them.
    """
    texts = [(None, text) for text in _TEXTS]
    texts += [(token, context.replace("{}", token)) for token in tokens for context in _CONTEXTS]
    only_texts = [text for _, text in texts]
    results = zip(_encode(expected, only_texts, as_text), _encode(actual, only_texts, as_text), strict=True)
    for (token, text), (expected_ids, actual_ids) in zip(texts, results, strict=True):
        if expected_ids != actual_ids:
            yield Difference(token, text, expected_ids, actual_ids)


def _encode(tokenizer: Tokenizer, texts: Sequence[str], as_text: bool) -> list[list[int] | str]:
    """Encodes one text after another: a batch would start threads before the run has determined their number."""
    saved_flag = tokenizer.encode_special_tokens
    tokenizer.encode_special_tokens = as_text
    try:
        return [_ids(tokenizer, text) for text in texts]
    finally:
        tokenizer.encode_special_tokens = saved_flag


def _ids(tokenizer: Tokenizer, text: str) -> list[int] | str:
    try:
        with library_errors():
            return tokenizer.encode(text).ids
    except EncodingError as error:  # the model has no token for an unknown part of the text, for example
        return str(error)
