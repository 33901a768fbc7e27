"""Hugging Face's `tokenizers`: the reference that every other engine is held to."""

from __future__ import annotations

import numpy as np
from tokenizers import Tokenizer


def reference_tokenizer(tokenizer_json: str) -> Tokenizer:
    """HF's tokenizer, neither truncating nor padding, with special tokens in the text read as plain text."""
    tokenizer = Tokenizer.from_str(tokenizer_json)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    return tokenizer


class HFEngine:
    """See `Engine`."""

    name = "hf"

    def __init__(self, tokenizer_json: str):
        self._tokenizer = reference_tokenizer(tokenizer_json)

    def encode_batch(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        ids = [encoding.ids for encoding in encodings]
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        flat = np.fromiter((token for text in ids for token in text), np.uint32, int(lengths.sum()))
        return flat, lengths
