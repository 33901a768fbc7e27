"""Training a tokenizer: texts → the files that AutoTokenizer loads. The same texts give the same bytes, always.

Unigram models are trained by SentencePiece on counted words. The trainer in `tokenizers` walks a hash map whose order
changes from run to run and gives other scores, and so other vocabularies, each time; SentencePiece's result depends on
its input alone, and it takes a sixth of the time. BPE and WordPiece models are trained by `tokenizers`, whose result
depends on the counts of words alone once its alphabet is given to it.
"""

from __future__ import annotations

import io
import re
import sys
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import sentencepiece
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

from beam_pipeline.errors import DataError
from beam_pipeline.tokenization.normalization import FOLD_SPACE

# Of the characters in the sample, the most frequent that together make up this share are in the vocabulary, as is
# SentencePiece's default, and all of ASCII; others are unknown. (Byte-level BPE knows every byte.)
_COVERAGE = 0.9995
_ASCII = [chr(code) for code in range(0x21, 0x7F)]

# Part of what SentencePiece computes, since it adds up its threads' sums in their order: not the number of cores.
_THREADS = 16

# A "word" may be a whole document where a language has no spaces, and the time to train grows faster than its length.
_LONGEST_WORD = 1 << 10

# Texts are given to `tokenizers`' trainers in pieces of about this many characters: it uses 100 bytes for each.
_LONGEST_TEXT = 1 << 16

# A BPE or WordPiece token is learnt from what stands in the sample at least so often.
_MIN_FREQUENCY = 2

_SUBWORD = "##"


@dataclass(frozen=True)
class Trained:
    """A new tokenizer.

    Attributes:
      tokenizer: its template included.
      special_tokens: the token of each role it has (`pad_token`, `mask_token`, …).
      model_inputs: what models are given: token types only where models expect them, since GPT-2 misreads them.
    """

    tokenizer: Tokenizer
    special_tokens: Mapping[str, str]
    model_inputs: tuple[str, ...] = ("input_ids", "attention_mask")

    def files(self) -> dict[str, bytes]:
        """The files of its folder, by name."""
        from transformers import PreTrainedTokenizerFast

        fast = PreTrainedTokenizerFast(
            tokenizer_object=self.tokenizer,
            model_input_names=list(self.model_inputs),
            clean_up_tokenization_spaces=False,
            **self.special_tokens,
        )
        with tempfile.TemporaryDirectory() as folder:
            fast.save_pretrained(folder)
            return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


def train(
    model: str,
    texts: Callable[[], Iterable[str]],
    *,
    vocab_size: int,
    allow_smaller: bool = False,
    lowercase: bool = False,
) -> Trained:
    """Trains a tokenizer.

    Args:
      model: one of `unigram`, `bpe`, `wordpiece`.
      texts: gives the sample's documents, each time anew.
      vocab_size: tokens, special ones included.
      allow_smaller: whether the vocabulary may be smaller where the sample supports no more.
      lowercase: whether text is lower-cased and loses its accents (as BERT's uncased models have it).

    Raises:
      DataError: where the sample does not support that many tokens, or needs more.
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
            f"--vocab_size {vocab_size}: the sample supports {reached} tokens at most; ask for no more, sample more "
            "text (--sample_bytes, --input), or use --allow_smaller_vocab"
        )
    return trained


def _train_unigram(texts: Iterable[str], vocab_size: int) -> Trained:
    """A Unigram model over words (SentencePiece's `▁` marks their beginnings), with `<s> … </s>` around a text.

    Text is normalized to NFKC and each run of white space to one space, as in the Unigram tokenizers of T5, ALBERT
    and XLM-R. The special tokens have RoBERTa's ids: transformers' TensorFlow class of it counts positions from a
    padding id of 1. They are pieces of the model, too, but with scores that cannot win: so no text is taken for one.
    """
    special = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
    words: Counter[str] = Counter()
    for text in texts:
        words.update(unicodedata.normalize("NFKC", text).split())
    pieces = _sentence_pieces(words, vocab_size, len(special) - 1)[1:]  # the first is its unknown one
    if not {piece for piece, _ in pieces}.isdisjoint(special):  # SentencePiece joins no letters with signs
        raise AssertionError(f"among {special} is a piece that was learnt from text")
    # Less than the least of ways to spell one: each of its characters is a piece.
    never = max(map(len, special)) * min(score for _, score in pieces) - 100.0
    tokenizer = Tokenizer(models.Unigram([*((token, never) for token in special), *pieces], unk_id=3))
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.Replace(Regex(FOLD_SPACE), " "),
            normalizers.Strip(left=False, right=True),
        ]
    )
    # "first": with "always", what follows a mask without a space would get one.
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    _add_special(tokenizer, special, mask="<mask>")
    _add_template(tokenizer, "<s>", "</s>")
    roles = {"bos": "<s>", "eos": "</s>", "cls": "<s>", "sep": "</s>"}
    return Trained(tokenizer, _roles(**roles, pad="<pad>", unk="<unk>", mask="<mask>"))


def _sentence_pieces(words: Counter[str], vocab_size: int, added: int) -> list[tuple[str, float]]:
    """The model's pieces and scores, the unknown one first; `added` of the tokens are none of them."""
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_counted(words),
            input_format="tsv",
            model_writer=model,
            model_type="unigram",
            vocab_size=vocab_size - added,
            character_coverage=_COVERAGE,
            required_chars="".join(_ASCII),
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            unk_id=0,
            bos_id=-1,
            eos_id=-1,
            pad_id=-1,
            num_threads=_THREADS,
            max_sentence_length=2 * 4 * _LONGEST_WORD + 1,  # bytes
            hard_vocab_limit=False,  # else too large a vocabulary is an error, found after all the work
            minloglevel=2,
        )
    except RuntimeError as error:
        least = re.search(r"smaller than required_chars. \d+ vs (\d+)", str(error))
        if least:
            raise _too_small(vocab_size, int(least[1]) + added + 1) from error
        raise
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    return [(processor.id_to_piece(i), processor.get_score(i)) for i in range(processor.vocab_size())]


def _counted(words: Counter[str]) -> Iterator[str]:
    """Lines of text and a count, the most frequent first; in their own order where counts are equal.

    The pieces to start from are what stands twice in the lines, so a word that came twice is written twice: else the
    most frequent words would be no pieces. (With all of it, and with the text itself, vocabularies are no better.)
    """
    for word, count in sorted(words.items(), key=lambda item: (-item[1], item[0])):
        for start in range(0, len(word), _LONGEST_WORD):
            part = word[start : start + _LONGEST_WORD]
            if count > 1:
                yield f"{part} {part}\t{count // 2}"
            if count % 2:
                yield f"{part}\t1"


def _train_bpe(texts: Iterable[str], vocab_size: int) -> Trained:
    """A byte-level BPE model, GPT-2's way: every text is kept byte for byte, nothing is unknown.

    `<|endoftext|>` begins and ends documents (`prepare --append_eos` adds it). Padding has a token of its own, so that
    it is never mistaken for a document's end; `<|mask|>` makes the tokenizer fit for masked models, too.
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
        show_progress=sys.stderr.isatty(),
    )
    tokenizer.train_from_iterator(_pieces(texts), trainer)
    _add_special(tokenizer, added, mask="<|mask|>")
    return Trained(tokenizer, _roles(bos=added[0], eos=added[0], pad=added[1], mask=added[2]))


def _train_wordpiece(texts: Callable[[], Iterable[str]], vocab_size: int, lowercase: bool) -> Trained:
    """A WordPiece model, BERT's way, with `[CLS] … [SEP]` around a text.

    The trainer numbers the characters inside words in the order of a hash map, and breaks ties by these numbers. Given
    all of them beforehand, as if they were special tokens, it numbers them in the order given.
    """
    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    alphabet = _alphabet(texts(), tokenizer.normalizer)
    least = len(special) + 2 * len(alphabet)
    if vocab_size < least:
        raise _too_small(vocab_size, least)
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=_MIN_FREQUENCY,
        special_tokens=[*special, *(_SUBWORD + char for char in alphabet)],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        continuing_subword_prefix=_SUBWORD,
        show_progress=sys.stderr.isatty(),
    )
    tokenizer.train_from_iterator(_pieces(texts()), trainer)
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
    return Trained(result, roles, ("input_ids", "token_type_ids", "attention_mask"))


def _alphabet(texts: Iterable[str], normalizer: normalizers.Normalizer) -> list[str]:
    """The characters of normalized words, sorted, without the rarest (see `_COVERAGE`)."""
    raw: Counter[str] = Counter()
    for text in texts:
        raw.update(text)
    counts: Counter[str] = Counter()
    for char, count in raw.items():  # the normalizer works character by character
        counts.update({made: count for made in normalizer.normalize_str(char) if not made.isspace()})
    wanted = _COVERAGE * counts.total()
    kept = {made for char in _ASCII for made in normalizer.normalize_str(char)}
    for char, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if wanted > 0:
            kept.add(char)
        wanted -= count
    return sorted(kept)


def _pieces(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        for start in range(0, len(text), _LONGEST_TEXT):
            yield text[start : start + _LONGEST_TEXT]


def _too_small(vocab_size: int, least: int) -> DataError:
    return DataError(
        f"--vocab_size {vocab_size}: too small for the characters that this sample is written in; they and the special "
        f"tokens need {least}"
    )


def _roles(**tokens: str) -> dict[str, str]:
    return {f"{role}_token": token for role, token in tokens.items()}


def _add_special(tokenizer: Tokenizer, tokens: Sequence[str], mask: str | None = None) -> None:
    """Adds the tokens. `mask` takes the space before it, as RoBERTa's does: in a text it stands for a word."""
    tokenizer.add_special_tokens(
        [AddedToken(token, lstrip=token == mask, normalized=False) for token in tokens]
    )


def _add_template(tokenizer: Tokenizer, first: str, last: str) -> None:
    ids = [(token, tokenizer.token_to_id(token)) for token in (first, last)]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}", pair=f"{first} $A {last} {last} $B {last}", special_tokens=ids
    )
