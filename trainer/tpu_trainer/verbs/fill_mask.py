"""The fill-mask verb: predicts the tokens at the mask tokens of a text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tokenmill_reader.console.elapsed import elapsed
from tokenmill_reader.console.streams import json_line, print_data
from tpu_trainer.config import FillMaskConfig
from tpu_trainer.exports.exported import check_text, open_model, open_tokenizer, read_prompts
from tpu_trainer.support.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """A token for a mask."""

    probability: float
    token: str
    text: str
    """The whole text with only this mask filled."""


def main(config: FillMaskConfig) -> None:
    """Prints the predictions for each text, the likeliest first.

    Raises:
        UsageError: If the folder has no masked model, or a text has no mask token or is too long.
    """
    with elapsed("fill-mask: loading the tokenizer"):
        tokenizer, vocabulary = open_tokenizer(config.model, "mlm")
    if config.text is not None:
        _encode(check_text(config.text, "--text"), tokenizer)  # rejects it before the model is loaded
    with elapsed("fill-mask: starting TensorFlow"):
        model = open_model(config.model, tokenizer, vocabulary, "mlm")
    filler = MaskFiller(model, tokenizer)
    for prompt in read_prompts(config.text, json_lines=config.json):
        masks = list(filler.fill(prompt.text, config.top_k))
        if prompt.record is not None:
            answer = {
                **prompt.record,
                "masks": [[asdict(prediction) for prediction in mask] for mask in masks],
            }
            print_data(json_line(answer))
            continue
        print_data(prompt.text)
        for number, predictions in enumerate(masks, start=1):
            print_data(f"  mask {number}")
            for prediction in predictions:
                print_data(f"    {prediction.probability:.4f}  {prediction.token!r}  {prediction.text}")


def _encode(text: str, tokenizer: Any) -> list[int]:
    ids = tokenizer(text)["input_ids"]
    if tokenizer.mask_token_id not in ids:
        raise UsageError(
            f"no {tokenizer.mask_token} in the text {text!r}: insert it for each token to predict"
        )
    if len(ids) > tokenizer.model_max_length:
        raise UsageError(
            f"a text has {len(ids)} tokens; the model takes {tokenizer.model_max_length}: shorten it: {text[:60]!r}…"
        )
    return ids


class MaskFiller:
    """Predicts the tokens at the masks of a text with a LanguageModel."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self._model = model
        self._tokenizer = tokenizer

    def fill(self, text: str, top_k: int) -> Iterator[list[Prediction]]:
        """Yields the `top_k` likeliest tokens for each mask.

        Raises:
            UsageError: If the text has no mask or is too long.
        """
        from tpu_trainer.network.transformer import Inputs  # imports TensorFlow

        ids = np.array(_encode(text, self._tokenizer), np.int32)
        positions = np.flatnonzero(ids == self._tokenizer.mask_token_id).astype(np.int32)
        logits = self._model.logits_at(Inputs(ids[None]), positions=positions[None]).numpy()[0]
        for position, row in zip(positions, logits.astype(np.float64), strict=True):
            exponentials = np.exp(row - row.max())
            probabilities = exponentials / exponentials.sum()
            best = np.argsort(-probabilities, kind="stable")[:top_k]
            yield [
                Prediction(
                    probability=float(probabilities[token]),
                    token=self._tokenizer.decode([token]),
                    text=self._filled(ids, position, token),
                )
                for token in best
            ]

    def _filled(self, ids: np.ndarray, position: int, token: int) -> str:
        """Returns the text with one mask filled; other masks stay, other special tokens are omitted."""
        filled = ids.copy()
        filled[position] = token
        hidden = set(self._tokenizer.all_special_ids) - {self._tokenizer.mask_token_id, int(token)}
        return self._tokenizer.decode([i for i in filled.tolist() if i not in hidden])
