"""Verb fill-mask: what an exported model predicts at the mask tokens of a text."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tpu_trainer import files
from tpu_trainer.config import FillMaskConfig
from tpu_trainer.errors import UsageError
from tpu_trainer.vocabulary import Vocabulary, load_tokenizer


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """One token for one mask; `text` is the whole text with this mask, only, filled."""

    probability: float
    token: str
    text: str


def main(config: FillMaskConfig) -> None:
    """Runs the verb: prints the predictions of each text, the likeliest first."""
    for name in ("config.json", "tf_model.h5"):
        if not files.is_file(files.join(config.model, name)):
            raise UsageError(f"{config.model}: no {name} there; give a folder that `export` has written")
    tokenizer = load_tokenizer(config.model)
    vocabulary = Vocabulary.of(tokenizer, config.model)
    if config.text is not None:
        _encode(config.text, tokenizer)  # refused before the model is loaded
    filler = _Filler(config.model, tokenizer, vocabulary)
    texts = [config.text] if config.text is not None else (line.rstrip("\n") for line in sys.stdin)
    for text in texts:
        print(text)
        for number, predictions in enumerate(filler.fill(text, config.top_k), start=1):
            print(f"  mask {number}")
            for prediction in predictions:
                print(
                    f"    {prediction.probability:.4f}  {prediction.token!r}  {prediction.text}", flush=True
                )


def _encode(text: str, tokenizer: Any) -> list[int]:
    ids = tokenizer(text)["input_ids"]
    if tokenizer.mask_token_id not in ids:
        raise UsageError(
            f"no {tokenizer.mask_token} in the text {text!r}: put it where a token is to be predicted"
        )
    if len(ids) > tokenizer.model_max_length:
        raise UsageError(
            f"a text of {len(ids)} tokens: the model takes {tokenizer.model_max_length}; shorten it: {text[:60]!r}…"
        )
    return ids


class _Filler:
    def __init__(self, path: str, tokenizer: Any, vocabulary: Vocabulary) -> None:
        # TensorFlow takes seconds to import: not for what the checks refuse.
        from transformers import TFAutoModelForMaskedLM

        from tpu_trainer.model import LanguageModel

        with files.local_copy(path) as folder:
            # transformers 4.55 to 4.57 cannot read PyTorch's layout into TensorFlow (huggingface/transformers#40028).
            network = TFAutoModelForMaskedLM.from_pretrained(
                folder, local_files_only=True, use_safetensors=False
            )
        self._model = LanguageModel(network=network, vocabulary=vocabulary)
        self._tokenizer = tokenizer

    def fill(self, text: str, top_k: int) -> Iterator[list[Prediction]]:
        ids = np.array(_encode(text, self._tokenizer), np.int32)
        positions = np.flatnonzero(ids == self._tokenizer.mask_token_id).astype(np.int32)
        logits = (
            self._model.logits_at(input_ids=ids[None], positions=positions[None])
            .numpy()[0]
            .astype(np.float64)
        )
        for position, row in zip(positions, logits, strict=True):
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
        """The text with one mask filled; other masks stay, the tokens around a text are left out."""
        filled = ids.copy()
        filled[position] = token
        hidden = set(self._tokenizer.all_special_ids) - {self._tokenizer.mask_token_id, int(token)}
        return self._tokenizer.decode([i for i in filled.tolist() if i not in hidden])
