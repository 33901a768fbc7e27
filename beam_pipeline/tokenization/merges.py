"""Learning the merges of BPE and WordPiece models from counted words, as the trainers in `tokenizers` do from texts.

Those accept texts only, and keep more than 100 bytes of memory for each character of different words. The compiled
functions give the same merges, in a tenth of the memory and of the time. Without them, a text that repeats each word
as often as it is counted goes to the trainer in `tokenizers`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from beam_pipeline.native import word_counts as native
from beam_pipeline.native.library import rows_library
from beam_pipeline.tokenization.byte_level import byte_characters

# A pair of tokens must occur at least this often.
_MIN_FREQUENCY = 2

_MERGES_PER_STEP = 64  # between which Ctrl-C can end the training
_WORDS_PER_PART = 1 << 20
_CHARS_PER_TEXT = 1 << 16

_UNKNOWN = native.BORDER - 1  # the id of characters that are not in the alphabet


@dataclass(frozen=True)
class Alphabet:
    """The tokens that a model begins with."""

    tokens: tuple[str, ...]
    """Their ids are their indices."""
    inside: str = ""
    """The prefix of tokens that are not at the beginning of a word."""


@dataclass(frozen=True)
class Learnt:
    """What was learnt from counted words."""

    vocabulary: dict[str, int]
    """Token → id: those of the alphabet, and then the merged ones."""
    merges: list[tuple[str, str]]


def learn(words: pa.Table, alphabet: Alphabet, vocab_size: int, *, compiled: bool = True) -> Learnt:
    """Learns merges.

    Args:
        words: Counted words, see `word_counts.SCHEMA`. If the alphabet has no prefix, their bytes are written in the
            byte alphabet; otherwise, characters that are not in the alphabet are left out.
        alphabet: The tokens to begin with.
        vocab_size: Number of tokens, those of the alphabet included. There are fewer if the words do not support as
            many.
        compiled: Whether to use the compiled functions, if there are any.

    Raises:
        MemoryError: If there is not enough.
    """
    library = rows_library() if compiled else None
    if library is None:
        return _learn_by_tokenizers(words, alphabet, vocab_size)
    words = words.take(pc.sort_indices(words, [("count", "descending"), ("word", "ascending")]))
    symbols, runs = _symbols(words, alphabet)
    steps = native.learn_merges(
        library,
        symbols,
        runs,
        tokens=len(alphabet.tokens),
        vocab_size=vocab_size,
        min_frequency=_MIN_FREQUENCY,
        per_step=_MERGES_PER_STEP,
    )
    [merges] = (merges for merges in steps if merges is not None)
    tokens = list(alphabet.tokens)
    numbers: dict[tuple[str, str], int] = {}  # a pair can be merged again, and then its last number counts
    for number, (left, right, merged) in enumerate(merges.tolist()):
        if merged == len(tokens):
            tokens.append(tokens[left] + tokens[right].removeprefix(alphabet.inside))
        numbers[tokens[left], tokens[right]] = number
    vocabulary = {token: index for index, token in enumerate(tokens)}
    return Learnt(vocabulary, sorted(numbers, key=numbers.__getitem__))


def _symbols(words: pa.Table, alphabet: Alphabet) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """Returns `symbols` and `runs` of `native.learn_merges` for words that are sorted by count."""
    to_ids = _ids_of_characters if alphabet.inside else _ids_of_bytes
    sizes = np.from_dlpack(pc.binary_length(words["word"]).combine_chunks())
    symbols = np.empty(1 + len(words) + int(sizes.sum()), np.uint32)
    symbols[0] = native.BORDER
    first_symbols = np.empty(len(words), np.int64)
    end = 1
    for start in range(0, len(words), _WORDS_PER_PART):
        part = words["word"].slice(start, _WORDS_PER_PART).combine_chunks()
        ids, lengths = to_ids(part, alphabet)
        ends = np.cumsum(lengths + 1)
        first_symbols[start : start + len(part)] = end + ends - (lengths + 1)
        target = symbols[end : end + len(ids) + len(part)]
        is_border = np.zeros(len(target), bool)
        is_border[ends - 1] = True
        target[is_border] = native.BORDER
        target[~is_border] = ids
        end += len(target)
    counts = np.from_dlpack(words["count"].combine_chunks())
    is_first = np.diff(counts, prepend=counts[:1] + 1) != 0
    return symbols[:end], (first_symbols[is_first], counts[is_first])


def _ids_of_bytes(words: pa.LargeBinaryArray, alphabet: Alphabet) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ids of the characters of words, and the number of these in each word."""
    ids = {token: index for index, token in enumerate(alphabet.tokens)}
    ids_by_byte = np.array([ids[char] for _, char in sorted(byte_characters().items())], np.uint32)
    data = np.frombuffer(b"".join(words.to_pylist()), np.uint8)
    return ids_by_byte[data], np.from_dlpack(pc.binary_length(words))


def _ids_of_characters(words: pa.LargeBinaryArray, alphabet: Alphabet) -> tuple[np.ndarray, np.ndarray]:
    texts = words.cast(pa.large_string())
    codes = np.frombuffer("".join(texts.to_pylist()).encode("utf-32-le"), "<u4")
    lengths = np.from_dlpack(pc.utf8_length(texts))
    word_index = np.repeat(np.arange(len(texts)), lengths)
    ids = {token: index for index, token in enumerate(alphabet.tokens)}
    different, inverse = np.unique(codes, return_inverse=True)
    chars = list(map(chr, different.tolist()))
    first, inside = (
        np.array([ids.get(prefix + char, _UNKNOWN) if char in ids else _UNKNOWN for char in chars], np.uint32)
        for prefix in ("", alphabet.inside)
    )
    is_first = np.diff(word_index, prepend=-1) > 0
    symbols = np.where(is_first, first[inverse], inside[inverse])
    is_known = symbols != _UNKNOWN
    return symbols[is_known], np.bincount(word_index[is_known], minlength=len(texts))


def _learn_by_tokenizers(words: pa.Table, alphabet: Alphabet, vocab_size: int) -> Learnt:
    singles = [token for token in alphabet.tokens if len(token) == 1]
    options = {"continuing_subword_prefix": alphabet.inside} if alphabet.inside else {}
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=_MIN_FREQUENCY,
        special_tokens=list(alphabet.tokens),  # so that they get these ids
        initial_alphabet=singles,
        limit_alphabet=len(singles),
        show_progress=False,
        **options,
    )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.train_from_iterator(_repeated(words, in_bytes=not alphabet.inside), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return Learnt(model["vocab"], [(left, right) for left, right in model["merges"]])


def _repeated(words: pa.Table, *, in_bytes: bool) -> Iterator[str]:
    """Yields texts that contain each word as often as it is counted, with spaces between them."""
    chars = byte_characters()
    for word, count in zip(words["word"].to_pylist(), words["count"].to_pylist(), strict=True):
        spelled = ("".join(map(chars.__getitem__, word)) if in_bytes else word.decode()) + " "
        per_text = max(1, _CHARS_PER_TEXT // len(spelled))
        for start in range(0, count, per_text):
            yield spelled * min(per_text, count - start)
