"""The generate verb: continues texts with an exported causal model."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tokenmill_reader.console.elapsed import elapsed
from tokenmill_reader.console.streams import json_line, print_data
from tpu_trainer.config import GenerateConfig
from tpu_trainer.exports.chat import chat_prompt, end_of_turn
from tpu_trainer.exports.exported import check_text, open_model, open_tokenizer, read_prompts
from tpu_trainer.exports.sampling import Sampling
from tpu_trainer.support.errors import UsageError

_DEFAULT_NEW_TOKENS = 50


def main(config: GenerateConfig) -> None:
    """Prints each text with its continuation.

    Raises:
        UsageError: If the folder has no causal model, or a text is too long, or empty without a begin token.
    """
    with elapsed("generate: loading the tokenizer"):
        tokenizer, vocabulary = open_tokenizer(config.model, "clm")
    if config.text is not None:
        text = check_text(config.text, "--text")
        encode(
            text, tokenizer, config.max_new_tokens, chat=config.chat
        )  # rejects it before the model is loaded
    with elapsed("generate: starting TensorFlow"):
        model = open_model(config.model, tokenizer, vocabulary, "clm")
    generator = Generator(
        model,
        tokenizer,
        Sampling(temperature=config.temperature, top_k=config.top_k, top_p=config.top_p, seed=config.seed),
        chat=config.chat,
    )
    numbered = enumerate(read_prompts(config.text, json_lines=config.json))
    while batch := list(itertools.islice(numbered, config.batch_size)):
        lines, prompts = zip(*batch, strict=True)
        texts = [prompt.text for prompt in prompts]
        continuations = generator.continuations(texts, lines=lines, max_new_tokens=config.max_new_tokens)
        for prompt, continuation in zip(prompts, continuations, strict=True):
            if prompt.record is not None:
                print_data(json_line({**prompt.record, "continuation": continuation}))
            else:
                print_data(continuation if config.chat else prompt.text + continuation)


def encode(
    text: str, tokenizer: Any, max_new_tokens: int | None, *, chat: bool = False
) -> tuple[list[int], int]:
    """Returns the ids of `text` (the begin token's if it is empty) and how many tokens to add.

    With `chat`, the ids are those of a conversation that begins with the text.

    Raises:
        UsageError: If both do not fit into the model, the text is empty and there is no begin token, or it is no
            message of a conversation.
    """
    if chat:
        ids = tokenizer(chat_prompt(text, tokenizer), add_special_tokens=False)["input_ids"]
    else:
        ids = tokenizer(text)["input_ids"]
    if not ids:
        if tokenizer.bos_token_id is None:
            raise UsageError("the text is empty and the tokenizer has no begin token: give at least one word")
        ids = [tokenizer.bos_token_id]
    room = tokenizer.model_max_length - len(ids)
    if room < (max_new_tokens or 1):
        raise UsageError(
            f"a text of {len(ids)} tokens and {max_new_tokens or 1} more do not fit into the model's "
            f"{tokenizer.model_max_length}; shorten the text or lower --max_new_tokens: {text[:60]!r}…"
        )
    return ids, max_new_tokens or min(room, _DEFAULT_NEW_TOKENS)


def _rounded(length: int, most: int) -> int:
    """Returns a power of two of at least `length`, but not more than `most`: each size is traced once."""
    return min(1 << int(length - 1).bit_length(), most)


class Generator:
    """Continues texts with a LanguageModel."""

    def __init__(self, model: Any, tokenizer: Any, sampling: Sampling, *, chat: bool = False) -> None:
        import tensorflow as tf

        self._model = model
        self._tokenizer = tokenizer
        self._sampling = sampling
        self._chat = chat
        self._end_of_turn = end_of_turn(tokenizer) if chat else None
        self._next_logits = tf.function(model.next_logits, autograph=False)

    def continuations(
        self, texts: Sequence[str], *, lines: Sequence[int], max_new_tokens: int | None
    ) -> Iterator[str]:
        """Yields the continuation of each of `texts`, in order; `lines` are their line numbers, for Sampling."""
        prompts = [encode(text, self._tokenizer, max_new_tokens, chat=self._chat) for text in texts]
        new = self._new_tokens([ids for ids, _ in prompts], lines, [count for _, count in prompts])
        for (ids, _), tokens in zip(prompts, new, strict=True):
            yield self._text(ids, tokens)

    def _new_tokens(
        self, prompts: Sequence[list[int]], lines: Sequence[int], counts: Sequence[int]
    ) -> list[list[int]]:
        """Returns up to `counts` tokens after each prompt, until an end token."""
        import tensorflow as tf

        from tpu_trainer.network.decoding import Cache

        ends = [end for end in (self._tokenizer.eos_token_id, self._end_of_turn) if end is not None]
        most = self._tokenizer.model_max_length
        lengths = np.array([len(ids) for ids in prompts], np.int32)
        ids = np.zeros([len(prompts), _rounded(lengths.max(), most)], np.int32)
        for row, prompt in zip(ids, prompts, strict=True):
            row[: len(prompt)] = prompt  # later tokens replace the padding
        cache = Cache.empty(
            self._model.network.architecture, len(prompts), _rounded(max(lengths + counts), most)
        )
        start, last = np.zeros_like(lengths), lengths - 1
        new: list[list[int]] = [[] for _ in prompts]
        open_rows = np.ones(len(prompts), bool)
        for step in range(max(counts)):
            logits, cache = self._next_logits(
                tf.constant(ids), cache, start=tf.constant(start), last=tf.constant(last)
            )
            tokens = self._sampling.choose(logits.numpy(), lines=lines, step=step)
            open_rows &= ~np.isin(tokens, ends)
            for index in np.flatnonzero(open_rows):
                new[index].append(int(tokens[index]))
            open_rows &= step + 1 < np.array(counts)
            if not open_rows.any():
                break
            # Rows that have ended compute their last token again.
            start = np.where(open_rows, lengths + step, start).astype(np.int32)
            ids, last = tokens[:, None].astype(np.int32), np.zeros_like(last)
        return new

    def _text(self, prompt: list[int], new: list[int]) -> str:
        """Returns the continuation, decoded together with the prompt."""

        def decode(ids: list[int]) -> str:
            # The tokenizer's configuration determines whether spaces before punctuation go: in code they must stay.
            return self._tokenizer.decode(ids, skip_special_tokens=True)

        return decode(prompt + new)[len(decode(prompt)) :]
