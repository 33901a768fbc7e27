"""The generate verb: continues texts with an exported causal model."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tokenmill_reader.console.elapsed import elapsed
from tokenmill_reader.console.streams import json_line, print_data
from tpu_trainer.config import GenerateConfig
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
        encode(text, tokenizer, config.max_new_tokens)  # rejects it before the model is loaded
    with elapsed("generate: starting TensorFlow"):
        model = open_model(config.model, tokenizer, vocabulary, "clm")
    generator = Generator(
        model,
        tokenizer,
        Sampling(temperature=config.temperature, top_k=config.top_k, top_p=config.top_p, seed=config.seed),
    )
    numbered = enumerate(read_prompts(config.text, json_lines=config.json))
    while batch := list(itertools.islice(numbered, config.batch_size)):
        lines, prompts = zip(*batch, strict=True)
        texts = [prompt.text for prompt in prompts]
        continued = generator.continued(texts, lines=lines, max_new_tokens=config.max_new_tokens)
        for prompt, text in zip(prompts, continued, strict=True):
            if prompt.record is not None:
                text = json_line({**prompt.record, "continuation": text[len(prompt.text) :]})
            print_data(text)


def encode(text: str, tokenizer: Any, max_new_tokens: int | None) -> tuple[list[int], int]:
    """Returns the ids of `text` (the begin token's if it is empty) and how many tokens to add.

    Raises:
        UsageError: If both do not fit into the model, or the text is empty and there is no begin token.
    """
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

    def __init__(self, model: Any, tokenizer: Any, sampling: Sampling) -> None:
        import tensorflow as tf

        self._model = model
        self._tokenizer = tokenizer
        self._sampling = sampling
        self._next_logits = tf.function(model.next_logits, autograph=False)

    def continued(
        self, texts: Sequence[str], *, lines: Sequence[int], max_new_tokens: int | None
    ) -> Iterator[str]:
        """Yields each of `texts`, in order, with its continuation; `lines` are their line numbers, for Sampling."""
        prompts = [encode(text, self._tokenizer, max_new_tokens) for text in texts]
        new = self._new_tokens([ids for ids, _ in prompts], lines, [count for _, count in prompts])
        for text, (ids, _), tokens in zip(texts, prompts, new, strict=True):
            yield self._text(text, ids, tokens)

    def _new_tokens(
        self, prompts: Sequence[list[int]], lines: Sequence[int], counts: Sequence[int]
    ) -> list[list[int]]:
        """Returns up to `counts` tokens after each prompt, until the end token."""
        import tensorflow as tf

        from tpu_trainer.network.decoding import Cache

        end, most = self._tokenizer.eos_token_id, self._tokenizer.model_max_length
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
            open_rows &= tokens != end if end is not None else True
            for index in np.flatnonzero(open_rows):
                new[index].append(int(tokens[index]))
            open_rows &= step + 1 < np.array(counts)
            if not open_rows.any():
                break
            # Rows that have ended compute their last token again.
            start = np.where(open_rows, lengths + step, start).astype(np.int32)
            ids, last = tokens[:, None].astype(np.int32), np.zeros_like(last)
        return new

    def _text(self, text: str, prompt: list[int], new: list[int]) -> str:
        """Returns the original text and the continuation, decoded together with the prompt."""

        def decode(ids: list[int]) -> str:
            # The tokenizer's configuration determines whether spaces before punctuation go: in code they must stay.
            return self._tokenizer.decode(ids, skip_special_tokens=True)

        return text + decode(prompt + new)[len(decode(prompt)) :]
