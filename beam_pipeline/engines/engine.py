"""The interface of tokenization engines, and the choice of an engine."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Protocol

from tokenizers import Tokenizer

from beam_pipeline.engines.fallbacks import Fallbacks
from beam_pipeline.engines.hf import HFEngine
from beam_pipeline.engines.native import NativeEngine
from beam_pipeline.engines.token_arrays import FlatIds
from beam_pipeline.engines.tokenizer_parts import split_tokenizer
from beam_pipeline.engines.word_models import check
from beam_pipeline.support.errors import UsageError
from beam_pipeline.support.locks import ForkableLock
from beam_pipeline.tokenization.control_tokens import tokenizer_for_text
from beam_pipeline.tokenization.tokenizer_json import UnsupportedComponent

# Measured by benchmarks/tokenizer_speed.py.
HF_SPEED = "1 to 5 MB/s"

ENGINES = ("auto", "hf", "native")

_MAKING = ForkableLock()  # a cached function may be called twice at the same time


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

    def encode_batch(self, texts: Sequence[str]) -> FlatIds:
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
    # auto and hf support every tokenizer that can encode text without control tokens
    tokenizer = tokenizer_for_text(tokenizer_json, **options)
    if name == "hf":
        return None
    try:
        check(split_tokenizer(tokenizer, parse_special_tokens))
    except UnsupportedComponent as error:
        if name != "auto":
            raise _unsupported(name, error) from error
        return str(error)
    return None


def _unsupported(name: str, error: UnsupportedComponent) -> UsageError:
    return UsageError(f"--engine {name}: does not support this tokenizer: {error}; use --engine auto or hf")


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
        name: `hf`, `native`, or `auto` for `native` if it supports this tokenizer, and otherwise `hf`.
        tokenizer_json: The content of the tokenizer's `tokenizer.json`.
        parse_special_tokens: Whether special tokens in a text are parsed.
        control_ids: Ids that no text may encode to, unless special tokens are parsed, in addition to the added tokens
            that are marked special.
        threads: Number of threads. For `hf`, the first engine of a process determines it for all later ones.

    Raises:
        UsageError: If there is no such engine, or it does not support this tokenizer.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true" if threads > 1 else "false")
    if name not in ENGINES:
        raise UsageError(f"--engine {name}: no such engine; choose one of {', '.join(ENGINES)}")
    reason = None
    if name != "hf":
        try:
            with _MAKING.held:
                engine = _native(tokenizer_json, tuple(sorted(control_ids)), parse_special_tokens)
            return engine.copy(threads)
        except UnsupportedComponent as error:
            if name != "auto":
                raise _unsupported(name, error) from error
            reason = str(error)
    options = {"parse_special_tokens": parse_special_tokens}
    tokenizer = tokenizer_for_text(tokenizer_json, control_ids=control_ids, **options)
    return HFEngine(tokenizer, reason=reason, **options)


@lru_cache(maxsize=1)
def _native(tokenizer_json: str, control_ids: tuple[int, ...], parse_special_tokens: bool) -> NativeEngine:
    """Makes the engine `native` once for all steps and threads of a run, which take copies of it."""
    options = {"parse_special_tokens": parse_special_tokens}
    tokenizer = tokenizer_for_text(tokenizer_json, control_ids=control_ids, **options)
    return NativeEngine(split_tokenizer(tokenizer, parse_special_tokens), tokenizer, **options)
