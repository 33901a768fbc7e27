"""The interface of tokenization engines, and the choice of an engine."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Protocol

from tokenizers import Tokenizer

from beam_pipeline.engines.cores import CORES
from beam_pipeline.engines.fallbacks import Fallbacks
from beam_pipeline.engines.fast import FastEngine
from beam_pipeline.engines.hf import HFEngine
from beam_pipeline.engines.token_arrays import FlatIds
from beam_pipeline.engines.tokenizer_parts import BYTE_LEVEL, SENTENCEPIECE, TokenizerParts, split_tokenizer
from beam_pipeline.support.errors import UsageError
from beam_pipeline.tokenization.control_tokens import tokenizer_for_text
from beam_pipeline.tokenization.tokenizer_json import UnsupportedComponent

# Measured by benchmarks/tokenizer_speed.py.
HF_SPEED = "1 to 5 MB/s"


class Engine(Protocol):
    """Turns texts into ids, exactly as HF's tokenizer does.

    Whether special tokens in a text are parsed or treated as plain text is fixed when the engine is made. Engines add
    no special tokens of their own; `DocumentTokenizer` adds those of the template.
    """

    name: str
    """The name in `--engine`."""
    reason: str | None
    """Why no fast engine supports the tokenizer. None if this is a fast engine, or if the user chose `hf`."""
    fallbacks: Fallbacks
    """Counts of the documents that HF has encoded instead."""
    reference: Tokenizer | None
    """HF's tokenizer, which gives the same ids. None if the engine itself is HF's."""

    def encode_batch(self, texts: list[str]) -> FlatIds:
        """Returns the ids of all texts (unsigned integers [tokens]) and the number in each text (int64 [texts])."""


def check_engine(
    name: str, tokenizer_json: str, *, parse_special_tokens: bool, control_ids: Collection[int]
) -> str | None:
    """Checks before a run that its workers can make this engine.

    Returns:
        With `auto`, the reason if no fast engine supports the tokenizer. Otherwise None.

    Raises:
        UsageError: If the engine does not support this tokenizer.
    """
    options = {"parse_special_tokens": parse_special_tokens, "control_ids": control_ids}
    if name in CORES:
        make_engine(name, tokenizer_json, **options)
        return None
    # auto and hf support every tokenizer that can encode text without control tokens
    tokenizer = tokenizer_for_text(tokenizer_json, **options)
    if name == "auto":
        try:
            parts = split_tokenizer(tokenizer, parse_special_tokens)
            CORES[_core_for(parts)].check(parts)
        except UnsupportedComponent as error:
            return str(error)
    return None


def _core_for(parts: TokenizerParts) -> str:
    return "gigatoken" if parts.kind in (BYTE_LEVEL, SENTENCEPIECE) else "tokie"


def make_engine(
    name: str,
    tokenizer_json: str,
    *,
    parse_special_tokens: bool = False,
    control_ids: Collection[int] = (),
    threads: int = 1,
) -> Engine:
    """Makes the engine with this name for a tokenizer. All engines give the same ids.

    Args:
        name: `hf`, `gigatoken`, `tokie`, or `auto` for the fastest engine that supports this tokenizer.
        tokenizer_json: The content of the tokenizer's `tokenizer.json`.
        parse_special_tokens: Whether special tokens in a text are parsed.
        control_ids: Ids that no text may encode to, unless special tokens are parsed, in addition to the added tokens
            that are marked special.
        threads: Number of threads. The first engine of a process determines it for all later ones, since each library
            has a single thread pool.

    Raises:
        UsageError: If there is no such engine, or it does not support this tokenizer.
    """
    os.environ.setdefault("RAYON_NUM_THREADS", str(threads))
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true" if threads > 1 else "false")
    if name != "hf" and name != "auto" and name not in CORES:
        raise UsageError(f"--engine {name}: no such engine; choose one of auto, hf, {', '.join(CORES)}")
    tokenizer = tokenizer_for_text(
        tokenizer_json, parse_special_tokens=parse_special_tokens, control_ids=control_ids
    )
    reason = None
    if name != "hf":
        try:
            parts = split_tokenizer(tokenizer, parse_special_tokens)
            core = CORES[_core_for(parts) if name == "auto" else name](parts, threads)
        except UnsupportedComponent as error:
            if name != "auto":
                raise UsageError(
                    f"--engine {name}: does not support this tokenizer: {error}; use --engine auto or hf"
                ) from error
            reason = str(error)
        else:
            return FastEngine(core, parts, tokenizer, parse_special_tokens=parse_special_tokens)
    return HFEngine(tokenizer, parse_special_tokens=parse_special_tokens, reason=reason)
