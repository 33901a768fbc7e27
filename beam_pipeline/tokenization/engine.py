"""The interface of a tokenization engine, and the choice of one."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from beam_pipeline.errors import UsageError


class Engine(Protocol):
    """Turns texts into ids exactly as HF's tokenizer does, special tokens in the text read as plain text.

    An engine adds no special tokens of its own: `tokenization.documents` does, by the tokenizer's template.
    """

    name: str

    def encode_batch(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Returns ids (unsigned integers [tokens]) and how many of them each text has (int64 [texts])."""


def make_engine(name: str, tokenizer_json: str) -> Engine:
    """The engine of that name for a tokenizer, given as the text of its `tokenizer.json`.

    Raises:
      UsageError: where there is no such engine.
    """
    from beam_pipeline.tokenization.hf import HFEngine

    engines = {"auto": HFEngine, "hf": HFEngine}
    if name not in engines:
        raise UsageError(f"--engine {name}: there is no such engine; there are {', '.join(engines)}")
    return engines[name](tokenizer_json)
