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
        model = open_model(config.model, vocabulary, "clm")
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


class Generator:
    """Continues texts with a LanguageModel."""

    def __init__(self, model: Any, tokenizer: Any, sampling: Sampling) -> None:
        self._network = model.network
        self._tokenizer = tokenizer
        self._sampling = sampling

    def continued(
        self, texts: Sequence[str], *, lines: Sequence[int], max_new_tokens: int | None
    ) -> Iterator[str]:
        """Yields each of `texts`, in order, with its continuation; `lines` are their line numbers, for Sampling."""
        prompts = [encode(text, self._tokenizer, max_new_tokens) for text in texts]
        results: dict[int, str] = {}
        # A batch has prompts of one length: not every model supports padding.
        by_length: dict[int, list[int]] = {}
        for index, (ids, _) in enumerate(prompts):
            by_length.setdefault(len(ids), []).append(index)
        for members in by_length.values():
            rows = np.array([prompts[index][0] for index in members], np.int32)
            new = self._new_tokens(rows, [lines[index] for index in members], prompts[members[0]][1])
            for index, row, tokens in zip(members, rows, new, strict=True):
                results[index] = self._text(texts[index], row.tolist(), tokens)
        yield from (results[index] for index in range(len(texts)))

    def _new_tokens(self, ids: np.ndarray, lines: Sequence[int], count: int) -> list[list[int]]:
        """Returns up to `count` tokens after each row of `ids` (int32[B, L]), until the end token."""
        import tensorflow as tf

        end = self._tokenizer.eos_token_id
        ended = np.zeros(len(ids), bool)
        start, cache = ids.shape[1], None
        for step in range(count):
            inputs = self._network.prepare_inputs_for_generation(
                tf.constant(ids), past_key_values=cache, attention_mask=tf.ones_like(ids), use_cache=True
            )
            output = self._network(**inputs)
            cache = output.get("past_key_values")
            tokens = self._sampling.choose(output.logits[:, -1].numpy(), lines=lines, step=step)
            ids = np.concatenate([ids, tokens[:, None].astype(np.int32)], axis=1)
            ended |= tokens == end
            if end is not None and ended.all():
                break
        new = [row[start:].tolist() for row in ids]
        return [row[: row.index(end)] if end in row else row for row in new]

    def _text(self, text: str, prompt: list[int], new: list[int]) -> str:
        """Returns the original text and the continuation, decoded together with the prompt."""

        def decode(ids: list[int]) -> str:
            # The tokenizer's configuration determines whether spaces before punctuation go: in code they must stay.
            return self._tokenizer.decode(ids, skip_special_tokens=True)

        return text + decode(prompt + new)[len(decode(prompt)) :]
