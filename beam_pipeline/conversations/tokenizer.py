"""Batches of conversations → `Documents` with targets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from beam_pipeline.conversations.chat_format import ChatFormat
from beam_pipeline.conversations.control_spans import ControlFinder
from beam_pipeline.conversations.encoding import TokenTargets
from beam_pipeline.conversations.rendering import ConversationRenderer, RenderedConversation
from beam_pipeline.conversations.template import RenderingError
from beam_pipeline.engines.documents import DocumentTokenizer
from beam_pipeline.engines.fallbacks import EngineUse
from beam_pipeline.engines.infilling import Infilling, InfillingTokenizer
from beam_pipeline.engines.token_arrays import Documents, targets_of, with_targets
from beam_pipeline.sources.units import BadRecord, DocumentBatch
from beam_pipeline.tokenization.library_errors import EncodingError
from beam_pipeline.tokenization.template import Template

Overlong = Literal["error", "drop", "truncate_left", "truncate_right"]


@dataclass(frozen=True)
class LengthLimit:
    """What happens to conversations with more tokens than a row."""

    max_length: int
    overlong: Overlong


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
        self._renderer = ConversationRenderer(chat, ControlFinder(self._targets.controls))
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
        rendered: dict[int, RenderedConversation] = {}
        reasons: dict[int, str] = {}
        for index, document in enumerate(batch.texts):
            try:
                rendered[index] = self._renderer.render(document)
            except RenderingError as error:
                reasons[index] = f"the chat template cannot render it: {error}"
        words: dict[int, np.ndarray] = {}
        plain = [index for index, conversation in rendered.items() if conversation.is_plain]
        for index, ids in self._encode_plain(batch, plain, rendered, reasons):
            is_target = self._targets.of(rendered[index], ids)
            if is_target is not None:
                words[index] = with_targets(ids, is_target)
        overlong = []
        for index, conversation in rendered.items():
            if index in reasons:
                continue
            if index not in words:
                try:
                    words[index] = with_targets(*self._targets.encode(conversation))
                except EncodingError as error:
                    reasons[index] = f"the tokenizer cannot encode it: {error}"
                    continue
                self._literal_documents += not conversation.is_plain
            if not self._fits(index, words, reasons):
                overlong.append(index)
        good = [index for index in sorted(words) if index not in reasons and index not in set(overlong)]
        return self._result(batch, good, words, reasons, len(overlong))

    def _encode_plain(
        self,
        batch: DocumentBatch,
        indices: list[int],
        rendered: dict[int, RenderedConversation],
        reasons: dict[int, str],
    ) -> Iterable[tuple[int, np.ndarray]]:
        """Encodes conversations by the engine. Yields (the index, its ids), and adds a reason for each bad one."""
        numbers = {int(batch.places[index]): index for index in indices}
        texts = DocumentBatch(
            batch.name,
            [rendered[index].text for index in indices],
            batch.places[indices],
            batch.bytes[indices],
        )
        encodable, documents = self._inner.encode(texts)
        for record in encodable.bad_records:
            reasons[numbers[record.place]] = record.reason
        for place, ids in zip(
            encodable.places.tolist(),
            np.split(documents.ids, np.cumsum(documents.lengths)[:-1]),
            strict=False,
        ):
            yield numbers[place], ids

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
            self._truncated.update(documents=1, tokens=length - most)
        if not targets_of(words[index]).any():
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
