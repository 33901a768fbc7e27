"""The interface of a tokenization engine, and the choice of one."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Protocol

import numpy as np
from tokenizers import Tokenizer

from beam_pipeline.errors import UsageError
from beam_pipeline.tokenization.control_tokens import tokenizer_for_text
from beam_pipeline.tokenization.fast import CORES, FastEngine
from beam_pipeline.tokenization.hf import HFEngine
from beam_pipeline.tokenization.tokenizer_parts import (
    BYTE_LEVEL,
    SENTENCEPIECE,
    UnsupportedComponent,
    parse_tokenizer,
)


class Engine(Protocol):
    """Turns texts into ids exactly as HF's tokenizer does.

    Special tokens in the text are read as plain text, or parsed, as the engine was made. An engine adds no special
    tokens of its own: `tokenization.documents` does, by the tokenizer's template.

    Attributes:
      name: as `--engine` takes it.
      misses: how many texts it has left to HF so far, in part or as a whole.
      reference: HF's tokenizer, which gives the same ids; None where the engine is HF's.
    """

    name: str
    misses: int
    reference: Tokenizer | None

    def encode_batch(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Returns ids (unsigned integers [tokens]) and how many of them each text has (int64 [texts])."""


def check_engine(
    name: str, tokenizer_json: str, *, parse_special_tokens: bool, control_ids: Collection[int]
) -> None:
    """Checks before a run that its workers can make this engine.

    Raises:
      UsageError: where it cannot do this tokenizer.
    """
    options = {"parse_special_tokens": parse_special_tokens, "control_ids": control_ids}
    if name in CORES:
        make_engine(name, tokenizer_json, **options)
    else:  # these can do every tokenizer that can be used for text
        tokenizer_for_text(tokenizer_json, **options)


def make_engine(
    name: str,
    tokenizer_json: str,
    *,
    parse_special_tokens: bool = False,
    control_ids: Collection[int] = (),
    threads: int = 1,
) -> Engine:
    """The engine of that name for a tokenizer; the ids never depend on which one it is.

    Args:
      name: `hf`, `gigatoken`, `tokie`, or `auto`: the fastest that can do this tokenizer.
      tokenizer_json: the text of the tokenizer's `tokenizer.json`.
      parse_special_tokens: whether special tokens that stand in the text become the special tokens.
      control_ids: ids that no text encodes to unless special tokens are parsed, beside those of the added tokens that
        are marked special.
      threads: how many an engine uses. The first engine of a process decides it for all, since the libraries have
        one pool of threads each.

    Raises:
      UsageError: where there is no such engine, or it cannot do this tokenizer.
    """
    os.environ.setdefault("RAYON_NUM_THREADS", str(threads))
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true" if threads > 1 else "false")
    if name != "hf" and name != "auto" and name not in CORES:
        raise UsageError(f"--engine {name}: there is no such engine; there are auto, hf, {', '.join(CORES)}")
    tokenizer = tokenizer_for_text(
        tokenizer_json, parse_special_tokens=parse_special_tokens, control_ids=control_ids
    )
    if name != "hf":
        try:
            parts = parse_tokenizer(tokenizer, parse_special_tokens)
            fitting = "gigatoken" if parts.kind in (BYTE_LEVEL, SENTENCEPIECE) else "tokie"
            core = CORES[fitting if name == "auto" else name](parts, threads)
        except UnsupportedComponent as error:
            if name != "auto":
                raise UsageError(
                    f"--engine {name}: cannot do this tokenizer exactly: {error}; use --engine auto or hf"
                ) from error
        else:
            return FastEngine(core, parts, tokenizer, parse_special_tokens=parse_special_tokens)
    return HFEngine(tokenizer, parse_special_tokens=parse_special_tokens)
