"""Training a tokenizer: texts → the files that AutoTokenizer loads. The same texts always give the same bytes.

BPE and WordPiece models are trained by `tokenizers`. There the result depends only on the word counts, if the
trainer gets the alphabet. Unigram models are trained by SentencePiece, see unigram_pieces.py.
"""

from __future__ import annotations

import functools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from beam_pipeline.support.errors import DataError
from beam_pipeline.tokenization import normalization
from beam_pipeline.tokenization.byte_level import byte_characters
from beam_pipeline.tokenization.byte_units import UNITS
from beam_pipeline.tokenization.folder_files import CONFIG, JSON, MAP
from beam_pipeline.tokenization.normalization import FOLD_SPACE
from beam_pipeline.tokenization.tokenizer_classes import PLAIN_CLASS
from beam_pipeline.tokenization.tokenizer_config import added_tokens_decoder
from beam_pipeline.tokenization.unigram_pieces import train_pieces

# `tokenizers`' trainers get texts in pieces of this many characters, since they use 100 bytes of memory per character.
_MAX_TEXT_CHARS = 1 << 16

# A BPE or WordPiece token must occur at least this often in the sample.
_MIN_FREQUENCY = 2

_SUBWORD = "##"

# WordPiece models know ASCII and the most frequent characters that together make up this share of the sample.
_COVERAGE = 0.9995
_ASCII = [chr(code) for code in range(0x21, 0x7F)]

# Words that a Unigram model is trained on: letters, digits, or signs, with the space before them, and white space. So
# no piece joins two of these kinds. The signs are those of ASCII and the frequent punctuation of other scripts.
_SIGNS = r"!-/:-@\[-`{-~\u00a1-\u00bf\u2010-\u2027\u2030-\u205e\u3001-\u303f\uff01-\uff0f\uff1a-\uff20"
_WORDS = re.compile(rf" ?[{_SIGNS}]+| ?\d+| ?[^\s\d{_SIGNS}]+|[^\S \n]+|[ \n]+(?![^ \n])|[ \n]")
_BYTE_CHARACTERS = {chr(byte): char for byte, char in byte_characters().items()}

# What transformers writes as `model_max_length` of a tokenizer without a limit.
_UNLIMITED = int(1e30)


@dataclass(frozen=True)
class TrainedTokenizer:
    """A new tokenizer."""

    tokenizer: Tokenizer
    """Includes its template."""
    special_tokens: Mapping[str, str]
    """Role (`pad_token`, `mask_token`, …) → token."""
    model_inputs: tuple[str, ...] = ("input_ids", "attention_mask")
    """The model's inputs. They include token types only for models that expect them, since GPT-2 misinterprets them."""

    def files(self) -> dict[str, bytes]:
        """Returns the content of the folder's files by name."""
        # As transformers 4.57 writes them; 5 reads that form, too.
        config = {
            "added_tokens_decoder": added_tokens_decoder(json.loads(self.tokenizer.to_str())),
            "clean_up_tokenization_spaces": False,
            "extra_special_tokens": {},
            "model_input_names": self.model_inputs,
            "model_max_length": _UNLIMITED,
            "tokenizer_class": PLAIN_CLASS,
            **self.special_tokens,
        }
        return {
            JSON: self.tokenizer.to_str(pretty=True).encode(),
            CONFIG: _dump(config),
            MAP: _dump(self.special_tokens),
        }


def _dump(value: Mapping) -> bytes:
    return (json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


def train(
    model: str,
    texts: Callable[[], Iterable[str]],
    *,
    vocab_size: int,
    special_tokens: Sequence[str] = (),
    strict: bool = False,
    normalize: bool = False,
    lowercase: bool = False,
) -> TrainedTokenizer:
    """Trains a tokenizer.

    Args:
        model: `bpe`, `unigram` or `wordpiece`.
        texts: Returns an iterable of the sample's documents. It may be called more than once.
        vocab_size: Number of tokens, special tokens included. There are fewer if the sample does not support as many.
        special_tokens: Further special tokens, which get the last ids.
        strict: Whether that is an error.
        normalize: Whether the tokenizer normalizes text to NFKC and folds white space. Not used by `wordpiece`, which
            always folds it.
        lowercase: Whether the tokenizer lower-cases text and removes accents, as BERT's uncased models do. Only used by
            `wordpiece`.

    Raises:
        DataError: If the sample's characters need more tokens, or with `strict`, if it supports fewer; if a special
            token is already a token.
    """
    if model == "wordpiece":
        trained = _train_wordpiece(texts, vocab_size, lowercase, len(special_tokens))
    else:
        normalizer = _folding_normalizer() if normalize else None
        normalized = map(_normalization(normalizer), texts()) if normalizer else texts()
        trained = (_train_bpe if model == "bpe" else _train_unigram)(
            normalized, vocab_size - len(special_tokens)
        )
        if normalizer:
            trained.tokenizer.normalizer = normalizer
    for token in special_tokens:
        if trained.tokenizer.token_to_id(token) is not None:
            raise DataError(
                f"--special_tokens {token}: the tokenizer has this token already, as text or with a role of its own"
            )
    _add_special(trained.tokenizer, special_tokens)
    actual_size = trained.tokenizer.get_vocab_size()
    if actual_size < vocab_size and strict:
        raise DataError(
            f"--vocab_size {vocab_size}: the sample supports {actual_size} tokens at most; lower --vocab_size, sample "
            "more text (--sample_bytes, --input), or omit --strict"
        )
    return trained


def _folding_normalizer() -> normalizers.Normalizer:
    """Returns a normalizer as in the tokenizers of T5, ALBERT and XLM-R."""
    return normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.Replace(Regex(FOLD_SPACE), " "),
            normalizers.Strip(left=False, right=True),
        ]
    )


def _normalization(normalizer: normalizers.Normalizer) -> Callable[[str], str]:
    """Returns the function of a normalizer, which takes less memory than its own method."""
    steps = normalization.steps(json.loads(normalizer.__getstate__()))
    return lambda text: functools.reduce(lambda texts, step: step(texts), steps, [text])[0]


def _train_unigram(texts: Iterable[str], vocab_size: int) -> TrainedTokenizer:
    """Trains a byte-level Unigram model, with `<s> … </s>` around a text.

    Like byte-level BPE, it represents every text byte by byte, so nothing is unknown, and decoding gives the text
    again. The special tokens have RoBERTa's ids. They are pieces of the model, too, but with scores so low that no text
    is ever segmented into them.
    """
    special = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
    words: Counter[str] = Counter()
    for text in texts:
        words.update(_WORDS.findall(text))
    spelled = Counter({_in_byte_alphabet(word): count for word, count in words.items()})
    pieces = train_pieces(spelled, vocab_size, len(special) - 1)[1:]  # without its unknown piece
    # No piece joins letters and signs, so none can be a special token.
    if not {piece for piece, _ in pieces}.isdisjoint(special):
        raise AssertionError(f"one of {special} was learnt from text")
    # Lower than the score of spelling the token with single characters, each of which is a piece.
    unreachable_score = max(map(len, special)) * min(score for _, score in pieces) - 100.0
    tokenizer = Tokenizer(
        models.Unigram([*((token, unreachable_score) for token in special), *pieces], unk_id=3)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(UNITS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    _add_special(tokenizer, special, mask="<mask>")
    _add_template(tokenizer, "<s>", "</s>")
    roles = {"bos": "<s>", "eos": "</s>", "cls": "<s>", "sep": "</s>"}
    return TrainedTokenizer(tokenizer, _roles(**roles, pad="<pad>", unk="<unk>", mask="<mask>"))


def _in_byte_alphabet(word: str) -> str:
    return "".join(map(_BYTE_CHARACTERS.__getitem__, word.encode().decode("latin-1")))


def _train_bpe(texts: Iterable[str], vocab_size: int) -> TrainedTokenizer:
    """Trains a byte-level BPE model like GPT-2's. It represents every text byte by byte, so nothing is unknown.

    `<|endoftext|>` begins and ends documents (`prepare --append_eos` adds it). Padding has its own token, so that it is
    never mistaken for the end of a document. `<mask>` makes the tokenizer suitable for masked models, too.
    """
    special = ("<|endoftext|>", "<pad>", "<mask>")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(special),
        min_frequency=_MIN_FREQUENCY,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_split_texts(texts), trainer)
    _add_special(tokenizer, special, mask="<mask>")
    return TrainedTokenizer(
        tokenizer, _roles(bos=special[0], eos=special[0], pad=special[1], mask=special[2])
    )


def _train_wordpiece(
    texts: Callable[[], Iterable[str]], vocab_size: int, lowercase: bool, further: int
) -> TrainedTokenizer:
    """Trains a WordPiece model like BERT's, with `[CLS] … [SEP]` around a text; leaves ids for `further` tokens.

    As in BERT, words and signs are all that is left of a text: decoding puts spaces between them.

    The trainer numbers the characters inside words in the order of a hash map, and breaks ties by these numbers.
    Passing all of them as special tokens makes it number them in their order.
    """
    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    alphabet = _alphabet(texts(), tokenizer.normalizer)
    minimum = len(special) + further + 2 * len(alphabet)
    if vocab_size < minimum:
        raise DataError(
            f"--vocab_size {vocab_size}: too small for the characters of this sample, which together with the special "
            f"tokens need {minimum}"
        )
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size - further,
        min_frequency=_MIN_FREQUENCY,
        special_tokens=[*special, *(_SUBWORD + char for char in alphabet)],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        continuing_subword_prefix=_SUBWORD,
        show_progress=False,
    )
    tokenizer.train_from_iterator(_split_texts(texts()), trainer)
    vocabulary = tokenizer.get_vocab()
    result = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", continuing_subword_prefix=_SUBWORD))
    result.normalizer, result.pre_tokenizer = tokenizer.normalizer, tokenizer.pre_tokenizer
    result.decoder = decoders.WordPiece(prefix=_SUBWORD)
    _add_special(result, special)
    ids = [(token, result.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    result.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ids
    )
    roles = _roles(pad="[PAD]", unk="[UNK]", cls="[CLS]", sep="[SEP]", mask="[MASK]")
    return TrainedTokenizer(result, roles, ("input_ids", "token_type_ids", "attention_mask"))


def _alphabet(texts: Iterable[str], normalizer: normalizers.Normalizer) -> list[str]:
    """Returns the characters of normalized words, sorted, without the rarest (see `_COVERAGE`)."""
    raw: Counter[str] = Counter()
    for text in texts:
        raw.update(text)
    counts: Counter[str] = Counter()
    for char, count in raw.items():  # the normalizer handles each character independently
        counts.update(
            {normalized: count for normalized in normalizer.normalize_str(char) if not normalized.isspace()}
        )
    missing_count = _COVERAGE * counts.total()
    chars = {normalized for char in _ASCII for normalized in normalizer.normalize_str(char)}
    for char, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if missing_count > 0:
            chars.add(char)
        missing_count -= count
    return sorted(chars)


def _split_texts(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        for start in range(0, len(text), _MAX_TEXT_CHARS):
            yield text[start : start + _MAX_TEXT_CHARS]


def _roles(**tokens: str) -> dict[str, str]:
    return {f"{role}_token": token for role, token in tokens.items()}


def _add_special(tokenizer: Tokenizer, tokens: Sequence[str], mask: str | None = None) -> None:
    """Adds special tokens. `mask` absorbs the space before it, as RoBERTa's does, since it replaces a word."""
    tokenizer.add_special_tokens(
        [AddedToken(token, lstrip=token == mask, normalized=False) for token in tokens]
    )


def _add_template(tokenizer: Tokenizer, prefix: str, suffix: str) -> None:
    ids = [(token, tokenizer.token_to_id(token)) for token in (prefix, suffix)]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{prefix} $A {suffix}", pair=f"{prefix} $A {suffix} {suffix} $B {suffix}", special_tokens=ids
    )
