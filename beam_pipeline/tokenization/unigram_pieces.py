"""Training the pieces of a Unigram model with SentencePiece, on counted words.

The trainer in `tokenizers` iterates over a hash map whose order changes from run to run, which gives different scores,
and so different vocabularies, each time. SentencePiece's result depends only on its input, and it takes a sixth of the
time.
"""

from __future__ import annotations

import io
import os
import re
import signal
from collections import Counter
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection

import sentencepiece

from beam_pipeline.support import worker_process
from beam_pipeline.support.errors import DataError, WorkerDied

# The vocabulary includes ASCII and the most frequent characters that together make up this share of the sample. This is
# SentencePiece's default. Other characters are unknown. (Byte-level BPE knows every byte.)
COVERAGE = 0.9995
ASCII = [chr(code) for code in range(0x21, 0x7F)]

# SentencePiece adds up its threads' sums in order, so its result depends on the number of threads. Therefore this is a
# constant, not the number of cores.
_THREADS = 16

# In languages without spaces a "word" may be a whole document, and the training time grows faster than its length.
_MAX_WORD_CHARS = 1 << 10

# With fewer words, training takes less than about a second.
_FEW_WORDS = 20_000

Pieces = list[tuple[str, float]]
"""Pieces and their scores."""


def train_pieces(words: Counter[str], vocab_size: int, num_special: int) -> Pieces:
    """Trains a Unigram model on counted words.

    SentencePiece lets no other thread of its process run, so neither Ctrl-C nor the display of the elapsed time would
    work. Therefore a process of its own trains, unless there are few words.

    Args:
        words: Word → count.
        vocab_size: Number of tokens.
        num_special: The number of these that are not pieces of this model.

    Returns:
        The unknown piece, then the others.

    Raises:
        DataError: If the characters of the words need more tokens.
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
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_weighted_lines(words),
            input_format="tsv",
            model_writer=model,
            model_type="unigram",
            vocab_size=vocab_size - num_special,
            character_coverage=COVERAGE,
            required_chars="".join(ASCII),
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            unk_id=0,
            bos_id=-1,
            eos_id=-1,
            pad_id=-1,
            num_threads=_THREADS,
            max_sentence_length=2 * 4 * _MAX_WORD_CHARS + 1,  # bytes
            hard_vocab_limit=False,  # otherwise a vocabulary that is too large is an error at the end of the training
            minloglevel=2,
        )
    except RuntimeError as error:
        match = re.search(r"smaller than required_chars. \d+ vs (\d+)", str(error))
        if match:
            raise too_small(vocab_size, int(match[1]) + num_special + 1) from error
        raise
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    return [(processor.id_to_piece(i), processor.get_score(i)) for i in range(processor.vocab_size())]


def _weighted_lines(words: Counter[str]) -> Iterator[str]:
    """Yields lines of a text and a count, the most frequent first, and sorted by word if counts are equal.

    SentencePiece starts from the strings that occur twice in the lines. So a word with a count of 2 or more is written
    twice; otherwise the most frequent words would not become pieces. (Writing all occurrences, or the text itself, does
    not give better vocabularies.)
    """
    for word, count in sorted(words.items(), key=lambda item: (-item[1], item[0])):
        for start in range(0, len(word), _MAX_WORD_CHARS):
            piece = word[start : start + _MAX_WORD_CHARS]
            if count > 1:
                yield f"{piece} {piece}\t{count // 2}"
            if count % 2:
                yield f"{piece}\t1"


def too_small(vocab_size: int, minimum: int) -> DataError:
    """Returns the error for a vocabulary that cannot contain all characters."""
    return DataError(
        f"--vocab_size {vocab_size}: too small for the characters of this sample, which together with the special "
        f"tokens need {minimum}"
    )
