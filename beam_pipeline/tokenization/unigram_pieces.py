"""Training the pieces of a Unigram model with SentencePiece, on counted words.

The trainer in `tokenizers` iterates over a hash map whose order changes from run to run, which gives different scores,
and so different vocabularies, each time. SentencePiece's result depends only on its input, and it takes a sixth of the
time.
"""

from __future__ import annotations

import io
import os
import signal
from collections import Counter
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection

import sentencepiece

from beam_pipeline.support import worker_process
from beam_pipeline.support.errors import WorkerDied
from beam_pipeline.tokenization.tokenizer_json import BYTE_ALPHABET

# SentencePiece adds up its threads' sums in order, so its result depends on the number of threads. Therefore this is a
# constant, not the number of cores.
_THREADS = 16

# In languages without spaces a "word" may be a whole document, and the training time grows faster than its length.
_MAX_WORD_CHARS = 1 << 10

# Bytes in a piece. SentencePiece's default is 16 characters, which have up to three bytes each.
_MAX_PIECE = 32

# No piece contains this character, which separates two copies of a word.
_BORDER = "␟"

# With fewer words, training takes less than about a second.
_FEW_WORDS = 20_000

Pieces = list[tuple[str, float]]
"""Pieces and their scores."""


def train_pieces(words: Counter[str], vocab_size: int, num_special: int) -> Pieces:
    """Trains a Unigram model on counted words, which are spelled in the byte alphabet.

    SentencePiece lets no other thread of its process run, so neither Ctrl-C nor the display of the elapsed time would
    work. Therefore a process of its own trains, unless there are few words.

    Args:
        words: Word → count.
        vocab_size: Number of tokens.
        num_special: The number of these that are not pieces of this model.

    Returns:
        The unknown piece, then the others. Each character of the byte alphabet is a piece.

    Raises:
        WorkerDied: If the process died.
    """
    if len(words) < _FEW_WORDS:
        return _train(words, vocab_size, num_special)
    context = get_context("spawn")  # a fork would be unsafe, since clients of file systems have threads
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(
        target=_train_and_send, args=(sender, os.getpid(), words, vocab_size, num_special)
    )
    process.start()
    sender.close()
    try:
        answer = receiver.recv()
    except EOFError as error:
        raise WorkerDied(
            "the process that trained the tokenizer died, perhaps because memory ran out"
        ) from error
    finally:
        process.kill()
        process.join()
    if isinstance(answer, Exception):
        raise answer
    return answer


def _train_and_send(
    sender: Connection, launcher: int, words: Counter[str], vocab_size: int, num_special: int
) -> None:
    """Trains in a process of its own, and sends the pieces or the error."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C also reaches the launcher, which ends this process
    worker_process.exit_with_launcher(launcher)
    try:
        sender.send(_train(words, vocab_size, num_special))
    except Exception as error:
        sender.send(error)


def _train(words: Counter[str], vocab_size: int, num_special: int) -> Pieces:
    model = io.BytesIO()
    words = words + Counter(BYTE_ALPHABET)  # so that each of its characters becomes a piece
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=_weighted_lines(words),
        input_format="tsv",
        model_writer=model,
        model_type="unigram",
        vocab_size=vocab_size - num_special + 1,
        user_defined_symbols=[_BORDER],
        character_coverage=1.0,
        normalization_rule_name="identity",
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        # The words have been split, and characters of the byte alphabet tell nothing about scripts.
        split_by_unicode_script=False,
        split_by_number=False,
        max_sentencepiece_length=_MAX_PIECE,
        unk_id=0,
        bos_id=-1,
        eos_id=-1,
        pad_id=-1,
        num_threads=_THREADS,
        max_sentence_length=2 * 2 * _MAX_WORD_CHARS + len(_BORDER.encode()),
        hard_vocab_limit=False,  # otherwise a vocabulary that is too large is an error at the end of the training
        minloglevel=2,
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    pieces = [(processor.id_to_piece(i), processor.get_score(i)) for i in range(processor.vocab_size())]
    return [(piece, score) for piece, score in pieces if piece != _BORDER]


def _weighted_lines(words: Counter[str]) -> Iterator[str]:
    """Yields lines of a text and a count, the most frequent first, and sorted by word if counts are equal.

    SentencePiece starts from the strings that occur twice in the lines, of which it drops repeated ones. So a word with
    a count of 2 or more is written twice in a line; otherwise the most frequent words would not become pieces. (Writing
    all occurrences, or the text itself, does not give better vocabularies.)
    """
    for word, count in sorted(words.items(), key=lambda item: (-item[1], item[0])):
        for start in range(0, len(word), _MAX_WORD_CHARS):
            piece = word[start : start + _MAX_WORD_CHARS]
            if count > 1:
                yield f"{piece}{_BORDER}{piece}\t{count // 2}"
            if count % 2:
                yield f"{piece}\t1"
