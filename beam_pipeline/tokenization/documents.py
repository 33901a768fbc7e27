"""Texts → `Documents`: an engine's ids between the special tokens that the tokenizer's template puts around them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from beam_pipeline.packing import Documents, ranges
from beam_pipeline.rows import id_dtype
from beam_pipeline.tokenization.engine import make_engine


@dataclass(frozen=True)
class Template:
    """The ids that stand before and after every document (`<s>` and `</s>`, say); either may be empty."""

    prefix: tuple[int, ...]
    suffix: tuple[int, ...]


class DocumentTokenizer:
    """Tokenizes batches of texts.

    Args:
      tokenizer_json: the text of the tokenizer's `tokenizer.json`.
      vocab_size: ids are below it.
      template: what stands around each document.
      engine: the engine's name, as `--engine` takes it.
    """

    def __init__(self, *, tokenizer_json: str, vocab_size: int, template: Template, engine: str):
        self._engine = make_engine(engine, tokenizer_json)
        self._dtype = id_dtype(vocab_size)
        self._prefix = np.array(template.prefix, self._dtype)
        self._suffix = np.array(template.suffix, self._dtype)

    def encode(self, texts: list[str]) -> Documents:
        """The documents' ids (uint16 or uint32, by the vocabulary's size) with their template's tokens."""
        ids, lengths = self._engine.encode_batch(texts)
        ids = ids.astype(self._dtype, copy=False)
        around = len(self._prefix) + len(self._suffix)
        if not around:
            return Documents(ids, lengths)
        full = lengths + around
        out = np.empty(int(full.sum()), self._dtype)
        starts = np.cumsum(full) - full
        out[ranges(starts + len(self._prefix), lengths)] = ids
        for offset, token in enumerate(self._prefix):
            out[starts + offset] = token
        for offset, token in enumerate(self._suffix):
            out[starts + full - len(self._suffix) + offset] = token
        return Documents(out, full)
