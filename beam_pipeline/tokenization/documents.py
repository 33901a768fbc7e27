"""Texts → `Documents`: the engine's ids, between the special tokens of the tokenizer's template."""

from __future__ import annotations

from collections.abc import Collection
from importlib.metadata import version

import numpy as np

from beam_pipeline.sources.units import DocumentBatch
from beam_pipeline.tokenization.engine import make_engine
from beam_pipeline.tokenization.fallbacks import EngineUse
from beam_pipeline.tokenization.sample_check import EngineMismatch, SampleCheck
from beam_pipeline.tokenization.template import Template
from beam_pipeline.tokenization.token_arrays import Documents, id_dtype

_MAX_RUNS = 4


class DocumentTokenizer:
    """Tokenizes batches of documents with an engine; see `make_engine`.

    Args:
        input_bytes: Size of the run's input, which determines how large a sample of the documents is used to check the
            engine. None turns the check off.
        seed: Determines the sample.
    """

    def __init__(
        self,
        *,
        tokenizer_json: str,
        vocab_size: int,
        template: Template,
        engine: str,
        parse_special_tokens: bool = False,
        control_ids: Collection[int] = (),
        threads: int = 1,
        input_bytes: int | None = None,
        seed: int = 0,
    ):
        self._engine = make_engine(
            engine,
            tokenizer_json,
            parse_special_tokens=parse_special_tokens,
            control_ids=control_ids,
            threads=threads,
        )
        self._check = (
            None if input_bytes is None else SampleCheck(self._engine, input_bytes=input_bytes, seed=seed)
        )
        self._dtype = id_dtype(vocab_size)
        self._control = np.array([] if parse_special_tokens else sorted(control_ids), self._dtype)
        self._prefix = np.array(template.prefix, self._dtype)
        self._suffix = np.array(template.suffix, self._dtype)
        self._version = version("tokenizers" if self._engine.name == "hf" else self._engine.name)
        self._documents = 0

    @property
    def use(self) -> EngineUse:
        """What was encoded so far."""
        engine = self._engine
        return EngineUse(engine.name, self._version, self._documents, engine.fallbacks.copy())

    def encode(self, batch: DocumentBatch) -> Documents:
        """Returns the documents' ids (uint16 or uint32, depending on the vocabulary's size), template included.

        Raises:
            EngineMismatch: If the check finds a document with other ids than HF's, or if a text encoded to a control
                token.
        """
        ids, lengths = self._engine.encode_batch(batch.texts)
        self._documents += len(batch.texts)
        ids = ids.astype(self._dtype, copy=False)
        self._refuse_control_tokens(batch, ids, lengths)
        if self._check is not None:
            self._check(batch, ids, lengths)
        around = len(self._prefix) + len(self._suffix)
        if not around:
            return Documents(ids, lengths)
        # The places and values of the template's tokens, [documents, tokens], then the text's ids in all other places.
        full = lengths + around
        ends = np.cumsum(full)[:, None]
        starts = ends - full[:, None]
        places = np.hstack(
            [starts + np.arange(len(self._prefix)), ends - np.arange(len(self._suffix), 0, -1)]
        )
        out = np.empty(int(full.sum()), self._dtype)
        is_text = np.ones(len(out), bool)
        is_text[places] = False
        out[is_text] = ids
        out[places] = np.concatenate([self._prefix, self._suffix])
        return Documents(out, full)

    def _refuse_control_tokens(self, batch: DocumentBatch, ids: np.ndarray, lengths: np.ndarray) -> None:
        """Checks every document for control tokens that came from its text, independently of how the engine works."""
        if _any_of(ids, self._control):
            found = np.isin(ids, self._control)
            place = int(found.argmax())
            number = int(np.searchsorted(np.cumsum(lengths), place, side="right"))
            raise EngineMismatch(
                batch.name,
                int(batch.places[number]),
                f"the engine {self._engine.name} encoded text to the control token with id {ids[place]}; use "
                "--engine hf, or --parse_special_tokens if you trust the text",
            )


def _any_of(ids: np.ndarray, wanted: np.ndarray) -> bool:
    """Whether any id is in `wanted`, which is sorted and of the same unsigned type.

    Control tokens mostly have consecutive ids. Checking for a run of ids takes half a nanosecond per id.
    """
    if not len(ids) or not len(wanted):
        return False
    runs = np.split(wanted, np.flatnonzero(np.diff(wanted) > 1) + 1)
    if len(runs) > _MAX_RUNS:
        return bool(np.isin(ids, wanted, kind="table").any())
    # Unsigned differences wrap around: ids below the run give large differences, so one comparison is enough.
    return any(bool((ids - run[0]).min() <= run[-1] - run[0]) for run in runs)
