"""Training a tokenizer: texts → the files that AutoTokenizer loads. The same texts always give the same bytes.

BPE and WordPiece models are trained by `tokenizers`. There the result depends only on the word counts, once the
alphabet is given to the trainer. Unigram models are trained by SentencePiece, see unigram_pieces.py.
"""

from __future__ import annotations

import json
import unicodedata
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
from beam_pipeline.tokenization.folder_files import CONFIG, JSON, MAP
from beam_pipeline.tokenization.normalization import FOLD_SPACE
from beam_pipeline.tokenization.tokenizer_classes import PLAIN_CLASS
from beam_pipeline.tokenization.tokenizer_config import added_tokens_decoder
from beam_pipeline.tokenization.unigram_pieces import ASCII, COVERAGE, too_small, train_pieces

# `tokenizers`' trainers get texts in pieces of this many characters, since they use 100 bytes of memory per character.
_MAX_TEXT_CHARS = 1 << 16

# A BPE or WordPiece token must occur at least this often in the sample.
_MIN_FREQUENCY = 2

_SUBWORD = "##"

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
    allow_smaller: bool = False,
    lowercase: bool = False,
) -> TrainedTokenizer:
    """Trains a tokenizer.

    Args:
        model: `unigram`, `bpe` or `wordpiece`.
        texts: Returns an iterable of the sample's documents. It may be called more than once.
        vocab_size: Number of tokens, special tokens included.
        allow_smaller: Whether the vocabulary may be smaller if the sample does not support `vocab_size` tokens.
        lowercase: Whether the tokenizer lower-cases text and removes accents, as BERT's uncased models do. Only used by
            `wordpiece`.

    Raises:
        DataError: If the sample does not support that many tokens, or needs more.
    """
    if model == "bpe":
        trained = _train_bpe(texts(), vocab_size)
    elif model == "wordpiece":
        trained = _train_wordpiece(texts, vocab_size, lowercase)
    else:
        trained = _train_unigram(texts(), vocab_size)
    reached = trained.tokenizer.get_vocab_size()
    if reached < vocab_size and not allow_smaller:
        raise DataError(
            f"--vocab_size {vocab_size}: the sample supports {reached} tokens at most; lower --vocab_size, sample more "
            "text (--sample_bytes, --input), or use --allow_smaller_vocab"
        )
    return trained


def _train_unigram(texts: Iterable[str], vocab_size: int) -> TrainedTokenizer:
    """Trains a Unigram model over words, with `<s> … </s>` around a text.

    SentencePiece's `▁` marks the beginning of a word. Text is normalized to NFKC, and each run of white space to one
    space, as in the tokenizers of T5, ALBERT and XLM-R. The special tokens have RoBERTa's ids, because transformers'
    TensorFlow class for RoBERTa counts positions from a padding id of 1. The special tokens are pieces of the model,
    too, but with scores so low that no text is ever segmented into them.
    """
    special = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
    words: Counter[str] = Counter()
    for text in texts:
        words.update(unicodedata.normalize("NFKC", text).split())
    pieces = train_pieces(words, vocab_size, len(special) - 1)[1:]  # without its unknown piece
    # SentencePiece never joins letters and symbols, so it cannot learn a special token from text.
    if not {piece for piece, _ in pieces}.isdisjoint(special):
        raise AssertionError(f"one of {special} was learnt from text")
    # Lower than the score of spelling the token with single characters, each of which is a piece.
    never = max(map(len, special)) * min(score for _, score in pieces) - 100.0
    tokenizer = Tokenizer(models.Unigram([*((token, never) for token in special), *pieces], unk_id=3))
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.Replace(Regex(FOLD_SPACE), " "),
            normalizers.Strip(left=False, right=True),
        ]
    )
    # "first", because "always" would insert a space after a mask that is not followed by one.
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    _add_special(tokenizer, special, mask="<mask>")
    _add_template(tokenizer, "<s>", "</s>")
    roles = {"bos": "<s>", "eos": "</s>", "cls": "<s>", "sep": "</s>"}
    return TrainedTokenizer(tokenizer, _roles(**roles, pad="<pad>", unk="<unk>", mask="<mask>"))


def _train_bpe(texts: Iterable[str], vocab_size: int) -> TrainedTokenizer:
    """Trains a byte-level BPE model like GPT-2's. It represents every text byte by byte, so nothing is unknown.

    `<|endoftext|>` begins and ends documents (`prepare --append_eos` adds it). Padding has its own token, so that it is
    never mistaken for the end of a document. `<|mask|>` makes the tokenizer suitable for masked models, too.
    """
    added = ("<|endoftext|>", "<|pad|>", "<|mask|>")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(added),
        min_frequency=_MIN_FREQUENCY,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_split_texts(texts), trainer)
    _add_special(tokenizer, added, mask="<|mask|>")
    return TrainedTokenizer(tokenizer, _roles(bos=added[0], eos=added[0], pad=added[1], mask=added[2]))


def _train_wordpiece(
    texts: Callable[[], Iterable[str]], vocab_size: int, lowercase: bool
) -> TrainedTokenizer:
    """Trains a WordPiece model like BERT's, with `[CLS] … [SEP]` around a text.

    The trainer numbers the characters inside words in the order of a hash map, and breaks ties by these numbers.
    Passing all of them as special tokens makes it number them in the given order.
    """
    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    alphabet = _alphabet(texts(), tokenizer.normalizer)
    minimum = len(special) + 2 * len(alphabet)
    if vocab_size < minimum:
        raise too_small(vocab_size, minimum)
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
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
    """Returns the characters of normalized words, sorted, without the rarest (see `COVERAGE`)."""
    raw: Counter[str] = Counter()
    for text in texts:
        raw.update(text)
    counts: Counter[str] = Counter()
    for char, count in raw.items():  # the normalizer handles each character independently
        counts.update(
            {normalized: count for normalized in normalizer.normalize_str(char) if not normalized.isspace()}
        )
    missing_count = COVERAGE * counts.total()
    chars = {normalized for char in ASCII for normalized in normalizer.normalize_str(char)}
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


def _add_template(tokenizer: Tokenizer, first: str, last: str) -> None:
    ids = [(token, tokenizer.token_to_id(token)) for token in (first, last)]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}", pair=f"{first} $A {last} {last} $B {last}", special_tokens=ids
    )
