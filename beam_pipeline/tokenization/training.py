"""Training a tokenizer: counted words → the files that AutoTokenizer loads. The same counts always give the same bytes.

BPE and WordPiece models learn merges, see merges.py, with the results of the trainers in `tokenizers`. Unigram models
are trained by SentencePiece, see unigram_pieces.py.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from beam_pipeline.support.errors import DataError
from beam_pipeline.tokenization.byte_level import byte_characters
from beam_pipeline.tokenization.byte_units import UNITS
from beam_pipeline.tokenization.folder_files import CONFIG, JSON, MAP
from beam_pipeline.tokenization.merges import Alphabet, learn
from beam_pipeline.tokenization.tokenizer_classes import PLAIN_CLASS
from beam_pipeline.tokenization.tokenizer_config import added_tokens_decoder
from beam_pipeline.tokenization.unigram_pieces import train_pieces
from beam_pipeline.tokenization.word_counts import folding_normalizer

_SUBWORD = "##"

# WordPiece models know ASCII and the most frequent characters that together make up this share of the text.
_COVERAGE = 0.9995
_ASCII = [chr(code) for code in range(0x21, 0x7F)]

_WORDS_PER_BATCH = 1 << 20
_BYTE_CHARACTERS = byte_characters()

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
    words: pa.Table,
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
        words: Counted words, by a `WordCounter` of the same model and options.
        vocab_size: Number of tokens, special tokens included. There are fewer if the text does not support as many.
        special_tokens: Further special tokens, which get the last ids.
        strict: Whether that is an error.
        normalize: Whether the tokenizer normalizes text to NFKC and folds white space. Not used by `wordpiece`, which
            always folds it.
        lowercase: Whether the tokenizer lower-cases text and removes accents, as BERT's uncased models do. Only used by
            `wordpiece`.

    Raises:
        DataError: If the text's characters need more tokens, or with `strict`, if it supports fewer; if a special
            token is already a token.
    """
    if model == "wordpiece":
        trained = _train_wordpiece(words, vocab_size, lowercase, len(special_tokens))
    else:
        trained = (_train_bpe if model == "bpe" else _train_unigram)(words, vocab_size - len(special_tokens))
        if normalize:
            trained.tokenizer.normalizer = folding_normalizer()
    for token in special_tokens:
        if trained.tokenizer.token_to_id(token) is not None:
            raise DataError(
                f"--special_tokens {token}: the tokenizer has this token already, as text or with a role of its own"
            )
    _add_special(trained.tokenizer, special_tokens)
    actual_size = trained.tokenizer.get_vocab_size()
    if actual_size < vocab_size and strict:
        raise DataError(
            f"--vocab_size {vocab_size}: the text supports {actual_size} tokens at most; lower --vocab_size, add text "
            "(--input), or omit --strict"
        )
    return trained


def _train_unigram(words: pa.Table, vocab_size: int) -> TrainedTokenizer:
    """Trains a byte-level Unigram model, with `<s> … </s>` around a text.

    Like byte-level BPE, it represents every text byte by byte, so nothing is unknown, and decoding gives the text
    again. The special tokens have RoBERTa's ids. They are pieces of the model, too, but with scores so low that no text
    is ever segmented into them.
    """
    special = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
    spelled = Counter(
        {_in_byte_alphabet(word): count for word, count in zip(*words.to_pydict().values(), strict=True)}
    )
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


def _in_byte_alphabet(word: bytes) -> str:
    return "".join(map(_BYTE_CHARACTERS.__getitem__, word))


def _train_bpe(words: pa.Table, vocab_size: int) -> TrainedTokenizer:
    """Trains a byte-level BPE model like GPT-2's. It represents every text byte by byte, so nothing is unknown.

    `<|endoftext|>` begins and ends documents (`prepare --append_eos` adds it). Padding has its own token, so that it is
    never mistaken for the end of a document. `<mask>` makes the tokenizer suitable for masked models, too.
    """
    special = ("<|endoftext|>", "<pad>", "<mask>")
    alphabet = Alphabet(tuple(sorted(_BYTE_CHARACTERS.values())))
    learnt = learn(words, alphabet, vocab_size - len(special))
    tokenizer = Tokenizer(models.BPE(learnt.vocabulary, learnt.merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    _add_special(tokenizer, special, mask="<mask>")
    return TrainedTokenizer(
        tokenizer, _roles(bos=special[0], eos=special[0], pad=special[1], mask=special[2])
    )


def _train_wordpiece(words: pa.Table, vocab_size: int, lowercase: bool, further: int) -> TrainedTokenizer:
    """Trains a WordPiece model like BERT's, with `[CLS] … [SEP]` around a text; leaves ids for `further` tokens.

    As in BERT, words and signs are all that is left of a text: decoding puts spaces between them.
    """
    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    chars = _alphabet(words, normalizer)
    minimum = len(special) + further + 2 * len(chars)
    if vocab_size < minimum:
        raise DataError(
            f"--vocab_size {vocab_size}: too small for the characters of this text, which together with the special "
            f"tokens need {minimum}"
        )
    alphabet = Alphabet((*special, *(_SUBWORD + char for char in chars), *chars), _SUBWORD)
    learnt = learn(words, alphabet, vocab_size - further)
    result = Tokenizer(
        models.WordPiece(learnt.vocabulary, unk_token="[UNK]", continuing_subword_prefix=_SUBWORD)
    )
    result.normalizer, result.pre_tokenizer = normalizer, pre_tokenizers.BertPreTokenizer()
    result.decoder = decoders.WordPiece(prefix=_SUBWORD)
    _add_special(result, special)
    ids = [(token, result.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    result.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ids
    )
    roles = _roles(pad="[PAD]", unk="[UNK]", cls="[CLS]", sep="[SEP]", mask="[MASK]")
    return TrainedTokenizer(result, roles, ("input_ids", "token_type_ids", "attention_mask"))


def _alphabet(words: pa.Table, normalizer: normalizers.Normalizer) -> list[str]:
    """Returns the characters of words, sorted, without the rarest (see `_COVERAGE`)."""
    counts: Counter[str] = Counter()
    for batch in words.to_batches(max_chunksize=_WORDS_PER_BATCH):
        texts = batch["word"].cast(pa.large_string())
        codes = np.frombuffer("".join(texts.to_pylist()).encode("utf-32-le"), "<u4")
        different, inverse = np.unique(codes, return_inverse=True)
        weights = np.repeat(np.from_dlpack(batch["count"]), np.from_dlpack(pc.utf8_length(texts)))
        sums = np.bincount(inverse, weights=weights, minlength=len(different))
        counts.update(dict(zip(map(chr, different.tolist()), map(int, sums), strict=True)))
    missing_count = _COVERAGE * counts.total()
    chars = {normalized for char in _ASCII for normalized in normalizer.normalize_str(char)}
    for char, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if missing_count > 0:
            chars.add(char)
        missing_count -= count
    return sorted(chars)


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
