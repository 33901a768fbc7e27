"""Texts → `Documents`: the engine's ids, between the special tokens of the tokenizer's template."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from importlib.metadata import version

import numpy as np

from beam_pipeline.engines.engine import make_engine
from beam_pipeline.engines.failures import encode_singly_if_needed, hidden_panics
from beam_pipeline.engines.fallbacks import EngineUse
from beam_pipeline.engines.sample_check import SampleCheck
from beam_pipeline.engines.token_arrays import Documents, FlatIds, id_dtype
from beam_pipeline.engines.unknown_text import dropped_characters
from beam_pipeline.sources.units import BadRecord, DocumentBatch
from beam_pipeline.support.errors import EngineMismatch
from beam_pipeline.tokenization.control_tokens import tokenizer_for_text
from beam_pipeline.tokenization.library_errors import EncodingError, library_errors
from beam_pipeline.tokenization.template import Template

_MAX_RUNS = 4

# Hundreds of times as long as HF needs for a batch.
_SLOW_SECONDS = 60

_log = logging.getLogger(__name__)


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
        options = {"parse_special_tokens": parse_special_tokens, "control_ids": control_ids}
        self._engine = make_engine(engine, tokenizer_json, **options, threads=threads)
        self._dropped_characters = dropped_characters(
            tokenizer_for_text(tokenizer_json, **options), parse_special_tokens=parse_special_tokens
        )
        self._check = (
            None if input_bytes is None else SampleCheck(self._engine, input_bytes=input_bytes, seed=seed)
        )
        self.dtype = id_dtype(vocab_size)
        """The type of ids."""
        self._control_ids = np.array([] if parse_special_tokens else sorted(control_ids), self.dtype)
        self._prefix = np.array(template.prefix, self.dtype)
        self._suffix = np.array(template.suffix, self.dtype)
        self._version = version("tokenizers" if self._engine.name == "hf" else "tokenmill")
        self._documents = 0
        self._dropped_counts: Counter[str] = Counter()
        self._has_failed = False
        # A regular expression that takes too many steps panics, for each such document of a batch.
        self._may_panic = self._engine.name == "hf" and '"Regex"' in tokenizer_json

    @property
    def use(self) -> EngineUse:
        """Counts of the documents encoded so far."""
        engine = self._engine
        return EngineUse(
            engine.name, self._version, self._documents, engine.fallbacks.copy(), self._dropped_counts.copy()
        )

    def encode(self, batch: DocumentBatch) -> tuple[DocumentBatch, Documents]:
        """Encodes documents.

        Returns:
            The batch without the documents that the engine cannot encode, which are among its bad records instead; and
            the ids of the others (uint16 or uint32, depending on the vocabulary's size), template included.

        Raises:
            EngineMismatch: If the check finds a document with other ids than HF's, or if a text encoded to a control
                token.
        """
        batch, (ids, lengths) = self._encode_texts(batch)
        self._documents += len(batch.texts)
        self._count_dropped(batch.texts)
        ids = ids.astype(self.dtype, copy=False)
        self._refuse_control_tokens(batch, ids, lengths)
        if self._check is not None:
            self._check(batch, ids, lengths)
        return batch, _add_template(ids, lengths, self._prefix, self._suffix)

    def _encode_texts(self, batch: DocumentBatch) -> tuple[DocumentBatch, FlatIds]:
        """Encodes the texts without the template. Returns the batch as `encode` does."""
        encode = self._engine.encode_batch
        with contextlib.ExitStack() as stack:
            if self._engine.name == "hf" and batch.texts:  # only HF supports patterns that may not terminate
                stack.enter_context(_warning_if_slow(batch))
            if self._may_panic or self._has_failed:
                stack.enter_context(hidden_panics())
            if not self._has_failed:
                with contextlib.suppress(EncodingError), library_errors():
                    return batch, encode(batch.texts)
                self._has_failed = True
                stack.enter_context(hidden_panics())
            flat, reasons = encode_singly_if_needed(encode, batch.texts)
        if not reasons:
            return batch, flat
        bad_records = [
            BadRecord(
                batch.name,
                int(batch.places[index]),
                f"the engine {self._engine.name} cannot encode it: {reason}",
                batch.texts[index].encode(),
            )
            for index, reason in reasons.items()
        ]
        encodable = batch.without(np.array(list(reasons)))
        return replace(encodable, bad_records=[*batch.bad_records, *bad_records]), flat

    def _count_dropped(self, texts: Sequence[str]) -> None:
        if self._dropped_characters is not None:
            positions = self._dropped_characters.positions(texts)
            if positions:
                characters = sum(map(len, positions.values()))
                self._dropped_counts.update(documents=len(positions), characters=characters)

    def _refuse_control_tokens(self, batch: DocumentBatch, ids: np.ndarray, lengths: np.ndarray) -> None:
        """Raises EngineMismatch if the engine encoded any text to a control token."""
        if _contains_any(ids, self._control_ids):
            is_control = np.isin(ids, self._control_ids)
            position = int(is_control.argmax())
            index = int(np.searchsorted(np.cumsum(lengths), position, side="right"))
            raise EngineMismatch(
                f"the engine {self._engine.name} encoded text to the control token with id {ids[position]}; use "
                "--engine hf, or --parse_special_tokens if you trust the text",
                batch.name,
                int(batch.places[index]),
            )


def _add_template(ids: np.ndarray, lengths: np.ndarray, prefix: np.ndarray, suffix: np.ndarray) -> Documents:
    """Adds the tokens of the template around each text.

    >>> _add_template(np.array([5, 6, 7]), np.array([2, 1]), np.array([1]), np.array([2]))
    Documents(ids=array([1, 5, 6, 2, 1, 7, 2]), lengths=array([4, 3]))
    """
    if not len(prefix) + len(suffix):
        return Documents(ids, lengths)
    lengths = lengths + len(prefix) + len(suffix)
    # The positions of the template's tokens in the result, [documents, tokens]: 0 3 and 4 6 in the example.
    ends = np.cumsum(lengths)[:, None]
    starts = ends - lengths[:, None]
    positions = np.hstack([starts + np.arange(len(prefix)), ends - np.arange(len(suffix), 0, -1)])
    result = np.empty(int(lengths.sum()), ids.dtype)
    is_text = np.ones(len(result), bool)
    is_text[positions] = False
    result[is_text] = ids
    result[positions] = np.concatenate([prefix, suffix])
    return Documents(result, lengths)


@contextlib.contextmanager
def _warning_if_slow(batch: DocumentBatch) -> Iterator[None]:
    """Warns if encoding takes so long that the run seems to hang. The library cannot be interrupted."""
    message = (
        f"{batch.name}: encoding takes more than {_SLOW_SECONDS} s for the {len(batch.texts):,} documents from place "
        f"{batch.places[0]} on (a byte or row); a pattern of the tokenizer may need ever more steps for such text"
    )
    timer = threading.Timer(_SLOW_SECONDS, _log.warning, [message])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _contains_any(ids: np.ndarray, targets: np.ndarray) -> bool:
    """Determines whether any id is in `targets`, which is sorted and of the same unsigned type.

    Control tokens mostly have consecutive ids, and checking for a run of ids takes half a nanosecond per id.

    >>> _contains_any(np.array([5, 9], np.uint16), np.array([7, 8, 9], np.uint16))
    True
    """
    if not len(ids) or not len(targets):
        return False
    runs = np.split(targets, np.flatnonzero(np.diff(targets) > 1) + 1)
    if len(runs) > _MAX_RUNS:
        return bool(np.isin(ids, targets, kind="table").any())
    # Unsigned differences wrap around: ids below the run give large differences, so one comparison is enough.
    return any(bool((ids - run[0]).min() <= run[-1] - run[0]) for run in runs)
