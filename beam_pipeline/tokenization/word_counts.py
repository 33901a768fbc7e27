"""Counting the words of texts: what the trainers of tokenizers learn from, instead of the texts.

A word is what the pre-tokenizer of the kind of tokenizer cuts out of a text: for `bpe` the matches of GPT-2's
pattern, for `wordpiece` BERT's words and signs, for `unigram` those of `UNIGRAM_WORDS`. Different words grow far
slower than the text: 10 GB of English have some ten million.

Without the compiled functions, `tokenizers` finds the same words, at a twentieth of the speed.
"""

from __future__ import annotations

import functools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tokenizers import Regex, normalizers, pre_tokenizers

from beam_pipeline.native.library import rows_library
from beam_pipeline.native.word_counts import (
    BLANK,
    DROP,
    KINDS,
    SINGLE,
    SPACE,
    CompiledCounter,
    binary_array,
    integer_array,
)
from beam_pipeline.tokenization import normalization
from beam_pipeline.tokenization.characters import CODES
from beam_pipeline.tokenization.normalization import FOLD_SPACE
from beam_pipeline.tokenization.patterns import CharacterClass

SCHEMA = pa.schema([("word", pa.large_binary()), ("count", pa.int64())])
"""Counted words: UTF-8, each once."""

LONGEST_WORD = 1 << 16
"""Bytes. A longer word is counted in parts of this size: DNA, or a language without spaces, may be one word."""

# Words of a Unigram model: letters, digits, or signs, with the space before them, and white space. So no piece joins
# two of these kinds. The signs are those of ASCII and the frequent punctuation of other scripts.
_SIGNS = r"!-/:-@\[-`{-~\u00a1-\u00bf\u2010-\u2027\u2030-\u205e\u3001-\u303f\uff01-\uff0f\uff1a-\uff20"
UNIGRAM_WORDS = re.compile(rf" ?[{_SIGNS}]+| ?\d+| ?[^\s\d{_SIGNS}]+|[^\S \n]+|[ \n]+(?![^ \n])|[ \n]")

_PLANES = 4
_SURROGATES = range(0xD800, 0xE000)

# Characters that BERT's tokenizers make a word of its own, whatever is beside them. There are further ones.
_BERT_SINGLE = r"[!-/:-@\[-`{-~\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df]"
# Words that BERT's normalizer, apart from case, and its pre-tokenizer leave as they are.
_BERT_PLAIN = r"^([A-Za-z0-9]+|[!-/:-@\[-`{-~])$"


def folding_normalizer() -> normalizers.Normalizer:
    """Returns a normalizer as in the tokenizers of T5, ALBERT and XLM-R."""
    return normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.Replace(Regex(FOLD_SPACE), " "),
            normalizers.Strip(left=False, right=True),
        ]
    )


class WordCounter:
    """Counts the words of texts.

    Args:
        model: `bpe`, `unigram` or `wordpiece`.
        normalize: Whether the texts are normalized with `folding_normalizer` first; not for `wordpiece`.
        lowercase: Whether the words are lower-cased, without accents; only for `wordpiece`.
        compiled: Whether to use the compiled functions, if there are any.
    """

    def __init__(
        self, model: str, *, normalize: bool = False, lowercase: bool = False, compiled: bool = True
    ):
        self._steps = (
            normalization.steps(json.loads(folding_normalizer().__getstate__())) if normalize else ()
        )
        self._refine = _bert_words(lowercase) if model == "wordpiece" else None
        library = rows_library() if compiled else None
        if library is None:
            self._counter = _PlainCounter(_FINDERS[model])
        else:
            self._counter = CompiledCounter(library, _CLASSES[model](), contractions=model == "bpe")

    def add(self, texts: list[str]) -> None:
        """Counts the words of texts. Lone surrogates, which UTF-8 cannot encode, are left out."""
        encoded = [text.encode(errors="ignore") for text in texts]
        if self._steps:
            texts = [text.decode() for text in encoded]
            for step in self._steps:
                texts = step(texts)
            encoded = [text.encode() for text in texts]
        self._counter.add(encoded)

    @property
    def bytes(self) -> int:
        """The approximate memory that it uses."""
        return self._counter.bytes

    def take(self) -> pa.Table:
        """Returns the words and their counts, `SCHEMA`, in any order; some may be there twice. Then begins at 0."""
        table = pa.table(list(self._counter.take()), schema=SCHEMA)
        return self._refine(table) if self._refine else table


def no_words() -> pa.Table:
    """Returns a table without words. (Arrow's own function for it imports pandas.)"""
    return pa.table(list(_arrays({})), schema=SCHEMA)


def merge(tables: Iterable[pa.Table]) -> pa.Table:
    """Adds up the counts of words, and sorts them by word."""
    table = pa.concat_tables([no_words(), *tables])
    table = table.take(pc.sort_indices(table["word"])).combine_chunks()
    if not len(table):
        return table
    words, counts = table["word"].chunk(0), np.from_dlpack(table["count"].chunk(0))
    differs = np.from_dlpack(pc.not_equal(words[1:], words[:-1]).cast(pa.uint8()))
    starts = np.append(0, np.flatnonzero(differs) + 1)
    sums = integer_array(np.add.reduceat(counts, starts))
    return pa.table([words.take(integer_array(starts)), sums], schema=SCHEMA)


class _PlainCounter:
    """`CompiledCounter` in Python.

    Args:
        find: Returns the words of a text.
    """

    def __init__(self, find: Callable[[str], Iterable[str]]):
        self._find = find
        self._counts: Counter[str] = Counter()
        self._chars = 0

    def add(self, texts: list[bytes]) -> None:
        for text in texts:
            for word in self._find(text.decode()):
                self._counts.update(_parts(word.encode()))
        self._chars = sum(map(len, self._counts))

    @property
    def bytes(self) -> int:
        return 120 * len(self._counts) + self._chars

    def take(self) -> tuple[pa.LargeBinaryArray, pa.Int64Array]:
        counts, self._counts, self._chars = self._counts, Counter(), 0
        return _arrays(counts)


def _arrays(counts: Mapping[bytes, int]) -> tuple[pa.LargeBinaryArray, pa.Int64Array]:
    values = np.fromiter(counts.values(), np.int64, len(counts))
    return binary_array(list(counts)), integer_array(values)


def _parts(word: bytes) -> Iterator[bytes]:
    """Cuts a word that is longer than `LONGEST_WORD`, between characters."""
    while len(word) > LONGEST_WORD:
        end = LONGEST_WORD
        while word[end] & 0xC0 == 0x80:
            end -= 1
        yield word[:end]
        word = word[end:]
    yield word


def _bert_words(lowercase: bool) -> Callable[[pa.Table], pa.Table]:
    """Returns a function that cuts strings without BERT's white space into its words.

    Its normalizer changes no character depending on one beyond white space or a sign, so that strings which occur
    many times are normalized once.
    """
    normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    pre_tokenizer = pre_tokenizers.BertPreTokenizer()

    def refine(table: pa.Table) -> pa.Table:
        is_plain = pc.match_substring_regex(table["word"], _BERT_PLAIN)
        plain = table.filter(is_plain)
        if lowercase:
            lowered = pc.ascii_lower(plain["word"].cast(pa.large_string())).cast(pa.large_binary())
            plain = plain.set_column(0, SCHEMA.field(0), lowered)
        counts: Counter[bytes] = Counter()
        others = table.filter(pc.invert(is_plain))
        for string, count in zip(others["word"].to_pylist(), others["count"].to_pylist(), strict=True):
            for word, _ in pre_tokenizer.pre_tokenize_str(normalizer.normalize_str(string.decode())):
                counts[word.encode()] += count
        return pa.concat_tables([plain, pa.table(list(_arrays(counts)), schema=SCHEMA)])

    return refine


def _find_by_pre_tokenizer(text: str) -> Iterator[str]:
    pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return (text[start:end] for _, (start, end) in pre_tokenizer.pre_tokenize_str(text))


_BERT_STRINGS = re.compile(rf"{_BERT_SINGLE}|[^ \t\n\r{_BERT_SINGLE[1:]}+")

_FINDERS: dict[str, Callable[[str], Iterable[str]]] = {
    "bpe": _find_by_pre_tokenizer,
    "unigram": UNIGRAM_WORDS.findall,
    "wordpiece": _BERT_STRINGS.findall,
}


def _planes() -> Iterator[str]:
    """Yields the characters of each plane of Unicode that has letters, numbers or white space."""
    for plane in range(_PLANES):
        codes = range(plane << 16, plane + 1 << 16)
        yield "".join(chr(code) for code in codes if code not in _SURROGATES)


def _set_matching(classes: np.ndarray, pattern: str, value: int) -> None:
    """Sets the class of the characters that match a pattern of Python."""
    for chars in _planes():
        for match in re.finditer(f"(?:{pattern})+", chars):
            classes[ord(match[0][0]) : ord(match[0][-1]) + 1] = value


@functools.cache
def _gpt2_classes() -> np.ndarray:
    r"""Returns the classes of `\s`, `\p{L}` and `\p{N}` in GPT-2's pattern, by `tokenizers`' tables of Unicode."""
    classes = np.full(CODES, KINDS, np.uint8)
    for value, expression in ((SPACE, r"\s"), (KINDS + 1, r"\p{L}"), (KINDS + 2, r"\p{N}")):
        character_class = CharacterClass("regex", expression)
        for chars in _planes():
            codes = np.frombuffer(chars.encode("utf-32-le"), "<u4")
            classes[codes[character_class.contains(chars)]] = value
    return classes


@functools.cache
def _unigram_classes() -> np.ndarray:
    classes = np.full(CODES, KINDS, np.uint8)
    kinds = {r"\s": BLANK, r"[ \n]": SPACE, r"\d": KINDS + 1, f"[{_SIGNS}]": KINDS + 2}
    for pattern, value in kinds.items():
        _set_matching(classes, pattern, value)
    return classes


@functools.cache
def _bert_classes() -> np.ndarray:
    classes = np.full(CODES, KINDS, np.uint8)
    _set_matching(classes, _BERT_SINGLE, SINGLE)
    _set_matching(classes, r"[ \t\n\r]", DROP)
    return classes


_CLASSES = {"bpe": _gpt2_classes, "unigram": _unigram_classes, "wordpiece": _bert_classes}
