"""Batches of conversations → `Documents` with targets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import orjson

from beam_pipeline.conversations.chat_format import ChatFormat
from beam_pipeline.conversations.control_spans import ControlFinder
from beam_pipeline.conversations.encoding import TokenLayout, TokenTargets
from beam_pipeline.conversations.rendering import ConversationRenderer, RenderedConversation
from beam_pipeline.conversations.shapes import FilledConversation, Shapes
from beam_pipeline.conversations.template import RenderingError
from beam_pipeline.engines.documents import DocumentTokenizer
from beam_pipeline.engines.fallbacks import EngineUse
from beam_pipeline.engines.infilling import Infilling, InfillingTokenizer
from beam_pipeline.engines.token_arrays import Documents, targets_of, with_targets
from beam_pipeline.sources.units import BadRecord, DocumentBatch
from beam_pipeline.support.texts import Texts
from beam_pipeline.tokenization.library_errors import EncodingError
from beam_pipeline.tokenization.template import Template

Overlong = Literal["error", "drop", "truncate_left", "truncate_right"]


@dataclass(frozen=True)
class LengthLimit:
    """What happens to conversations with more tokens than a row."""

    max_length: int
    overlong: Overlong


@dataclass
class _WrittenBatch:
    """A batch of conversations as texts, by their indices."""

    plain: dict[int, tuple[str, TokenLayout | None]] = field(default_factory=dict)
    """The texts whose control tokens are the template's."""
    literal: dict[int, RenderedConversation] = field(default_factory=dict)
    """Those in which a message spells some."""
    reasons: dict[int, str] = field(default_factory=dict)
    """Why the others cannot be written."""


class ConversationTokenizer:
    """Tokenizes batches of conversations. It has the interface of `DocumentTokenizer`.

    Args:
        chat: How the tokenizer writes conversations.
        limit: What happens to long ones; None: they stay as they are.
        options: Arguments of `DocumentTokenizer`, without the template and `parse_special_tokens`.
    """

    def __init__(self, *, chat: ChatFormat, limit: LengthLimit | None, **options: Any) -> None:
        self._limit = limit
        self._targets = TokenTargets(options["tokenizer_json"], options["control_ids"])
        self._finder = ControlFinder(self._targets.controls)
        self._renderer = ConversationRenderer(chat, self._finder)
        self._shapes = Shapes(self._renderer.template, self._targets)
        self._inner = DocumentTokenizer(template=Template((), ()), parse_special_tokens=True, **options)
        self._literal_documents = 0
        self._truncated: Counter[str] = Counter()

    @property
    def use(self) -> EngineUse:
        """Counts of the documents encoded so far."""
        use = self._inner.use
        return replace(
            use, documents=use.documents + self._literal_documents, truncated=self._truncated.copy()
        )

    def encode(self, batch: DocumentBatch) -> tuple[DocumentBatch, Documents]:
        """Encodes conversations.

        Returns:
            The batch without those that are bad or too long, and the ids of the others with their targets. What is too
            long is counted in the batch's `overlong`, or bad.

        Raises:
            EngineMismatch: If the check finds a conversation with other ids than HF's.
        """
        written = self._write(batch.texts)
        reasons = written.reasons
        words = self._encode_plain(batch, written)
        for index in sorted((written.plain.keys() | written.literal.keys()) - words.keys() - reasons.keys()):
            conversation = written.literal.get(index) or self._renderer.render(
                orjson.loads(batch.texts[index])
            )
            try:
                words[index] = with_targets(*self._targets.encode(conversation))
            except EncodingError as error:
                reasons[index] = f"the tokenizer cannot encode it: {error}"
                continue
            self._literal_documents += index in written.literal
        overlong = {index for index in words if not self._fits(index, words, reasons)}
        good = sorted(words.keys() - reasons.keys() - overlong)
        return self._result(batch, good, words, reasons, len(overlong))

    def _write(self, documents: Sequence[str]) -> _WrittenBatch:
        """Writes conversations as texts."""
        written = _WrittenBatch()
        filled: dict[int, FilledConversation] = {}
        spelling = self._finder.spelling(documents)
        for index, document in enumerate(documents):
            conversation = orjson.loads(document)
            candidate = None if index in spelling else self._shapes.fill(conversation)
            if candidate is None:
                self._render(index, conversation, written)
            else:
                filled[index] = candidate
        controls = self._finder.find([candidate.text for candidate in filled.values()])
        for (index, candidate), actual in zip(filled.items(), controls, strict=True):
            if actual == candidate.controls:
                written.plain[index] = candidate.text, candidate.layout
            else:  # a message and the template spell one together
                self._render(index, orjson.loads(documents[index]), written)
        return written

    def _render(self, index: int, conversation: Mapping[str, Any], written: _WrittenBatch) -> None:
        """Writes a conversation that is in no known shape. The shapes learn from it."""
        try:
            rendered = self._renderer.render(conversation)
        except RenderingError as error:
            written.reasons[index] = f"the chat template cannot render it: {error}"
            return
        self._shapes.learn(conversation, rendered)
        if rendered.is_plain:
            written.plain[index] = rendered.text, self._targets.layout(rendered)
        else:
            written.literal[index] = rendered

    def _encode_plain(self, batch: DocumentBatch, written: _WrittenBatch) -> dict[int, np.ndarray]:
        """Encodes conversations by the engine.

        Returns:
            By their indices, the ids of those whose layouts show the targets. Each that the engine cannot encode gets a
            reason.
        """
        indices = np.array(sorted(written.plain), np.int64)
        texts = [written.plain[index][0] for index in indices.tolist()]
        encodable, documents = self._inner.encode(
            DocumentBatch(batch.name, Texts.of(texts), batch.places[indices])
        )
        index_of = {place: index for index, place in enumerate(batch.places.tolist())}
        written.reasons.update({index_of[record.place]: record.reason for record in encodable.bad_records})
        indices = [index_of[place] for place in encodable.places.tolist()]
        is_target, fits = self._targets.of([written.plain[index][1] for index in indices], documents)
        ends = np.cumsum(documents.lengths)[:-1]
        words = np.split(with_targets(documents.ids, is_target), ends) if indices else []
        return {index: ids for index, ids, is_known in zip(indices, words, fits, strict=True) if is_known}

    def _fits(self, index: int, words: dict[int, np.ndarray], reasons: dict[int, str]) -> bool:
        """Treats a conversation that is too long, or has no target. Returns False if it is to be dropped."""
        if self._limit is not None and len(words[index]) > self._limit.max_length:
            length, most = len(words[index]), self._limit.max_length
            if self._limit.overlong == "drop":
                return False
            if self._limit.overlong == "error":
                reasons[index] = (
                    f"has {length:,} tokens, and a row only {most:,}; use a larger --max_length, or --overlong"
                )
                return True
            kept = slice(-most, None) if self._limit.overlong == "truncate_left" else slice(most)
            words[index] = words[index][kept]
            if targets_of(words[index]).any():
                self._truncated.update(documents=1, tokens=length - most)
            else:
                reasons[index] = (
                    f"has {length:,} tokens, and none of the {most:,} that --overlong {self._limit.overlong} keeps is "
                    "a target, so it would train nothing"
                )
        elif not targets_of(words[index]).any():
            reasons[index] = "no token of it is a target (--loss_on), so it would train nothing"
        return True

    def _result(
        self,
        batch: DocumentBatch,
        good: list[int],
        words: dict[int, np.ndarray],
        reasons: dict[int, str],
        overlong: int,
    ) -> tuple[DocumentBatch, Documents]:
        bad_records = [
            BadRecord(batch.name, int(batch.places[index]), reason, batch.texts[index].encode())
            for index, reason in sorted(reasons.items())
        ]
        dropped = np.setdiff1d(np.arange(len(batch.texts)), np.array(good, np.int64))
        kept = replace(
            batch.without(dropped), bad_records=[*batch.bad_records, *bad_records], overlong=overlong
        )
        ids = np.concatenate([np.empty(0, np.uint32), *(words[index] for index in good)])
        return kept, Documents(ids, np.array([len(words[index]) for index in good], np.int64))


AnyTokenizer = DocumentTokenizer | ConversationTokenizer | InfillingTokenizer
"""They all encode batches of documents, and count what they have encoded."""


def make_tokenizer(
    *,
    chat: ChatFormat | None,
    limit: LengthLimit | None,
    infilling: Infilling | None,
    template: Template,
    parse_special_tokens: bool,
    **options: Any,
) -> AnyTokenizer:
    """Returns the tokenizer of a run's documents: of conversations if there is a chat format, else of texts.

    Args:
        chat: See `ConversationTokenizer`.
        limit: See `ConversationTokenizer`.
        infilling: Which texts are cut; None: none are.
        template: See `DocumentTokenizer`.
        parse_special_tokens: See `DocumentTokenizer`.
        options: The other arguments of `DocumentTokenizer`.
    """
    if chat is not None:
        return ConversationTokenizer(chat=chat, limit=limit, **options)
    options |= {"template": template, "parse_special_tokens": parse_special_tokens}
    return DocumentTokenizer(**options) if infilling is None else InfillingTokenizer(infilling, **options)
