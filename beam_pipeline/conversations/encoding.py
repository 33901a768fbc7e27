"""Rendered conversations → ids, and which of them are targets of the loss.

The ids are those of Hugging Face's tokenizer for the whole text, so they equal `apply_chat_template`'s. Its special
tokens are parsed, since the template wrote them. If a message spells one, the text is encoded with stand-ins instead:
the tokenizer parses no special tokens, but has another added token for each of those that the template wrote.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer

from beam_pipeline.conversations.control_spans import ControlSpan, control_tokens
from beam_pipeline.conversations.rendering import RenderedConversation
from beam_pipeline.engines.hf import reference_tokenizer
from beam_pipeline.tokenization.control_tokens import tokenizer_for_text
from beam_pipeline.tokenization.library_errors import EncodingError, library_errors

_BRACKET = chr(0x10FFFF)
"""A noncharacter, around the names of stand-ins."""


class TokenTargets:
    """Finds the targets among a conversation's tokens, and encodes those that a fast engine must not.

    Args:
        tokenizer_json: The content of the `tokenizer.json`.
        control_ids: See `control_tokens`.
    """

    def __init__(self, tokenizer_json: str, control_ids: Collection[int]) -> None:
        self._json = tokenizer_json
        self._control_ids = control_ids
        self._tokenizer = tokenizer_for_text(tokenizer_json, parse_special_tokens=True)
        self.controls = control_tokens(self._tokenizer, control_ids)
        """The control tokens' entries, by their content."""
        self._ids = np.array(sorted(token["id"] for token in self.controls.values()), np.int64)
        self._headers: dict[tuple[str, str], np.ndarray] = {}

    def of(self, conversation: RenderedConversation, ids: np.ndarray) -> np.ndarray | None:
        """Returns which tokens of a conversation are targets: those with a character that is one.

        The control tokens divide both the text and the ids into sections, most of which consist of targets or have
        none. In the others, targets follow the header of a message, whose tokens are known.

        Args:
            conversation: A plain conversation.
            ids: Its ids, integers [tokens].

        Returns:
            bool [tokens]. None if the ids do not show it.
        """
        spans, text = conversation.controls, conversation.text
        places = np.flatnonzero(np.isin(ids, self._ids))
        if [self.controls[span.text]["id"] for span in spans] != ids[places].tolist():
            return None
        result = np.empty(len(ids), bool)
        counts = np.concatenate([[0], np.cumsum(conversation.targets)])
        start = token = 0
        opening = ""
        ends = [*places.tolist(), len(ids)]
        for number, end_token in enumerate(ends):
            end = spans[number].start if number < len(spans) else len(text)
            targets = int(counts[end] - counts[start])
            if targets in (0, end - start):
                result[token:end_token] = targets > 0
            else:
                header = start + int(conversation.targets[start:end].argmax())
                tokens = self._header_ids(opening, text[start:header])
                is_known = (
                    targets == end - header
                    and header > start
                    and np.array_equal(ids[token : token + len(tokens)], tokens)
                )
                if not is_known:
                    return None
                result[token : token + len(tokens)] = False
                result[token + len(tokens) : end_token] = True
            if number < len(spans):
                span = spans[number]
                result[end_token] = counts[span.end] > counts[span.start]
                start, token, opening = span.end, end_token + 1, span.text
        return result

    def _header_ids(self, opening: str, header: str) -> np.ndarray:
        """Returns the ids of a header after a control token."""
        if (opening, header) not in self._headers:
            encoded = self._parsing.encode(opening + header, add_special_tokens=False).ids
            self._headers[opening, header] = np.array(encoded[1:] if opening else encoded, np.int64)
        return self._headers[opening, header]

    def encode(self, conversation: RenderedConversation) -> tuple[np.ndarray, np.ndarray]:
        """Encodes a conversation by HF's tokenizer.

        Returns:
            Its ids, uint32 [tokens], and which of them are targets, bool [tokens].

        Raises:
            EncodingError: If the tokenizer cannot encode it.
        """
        if conversation.is_plain:
            return _encode(self._parsing, conversation.text, conversation.targets)
        text, targets = self._with_stand_ins(conversation)
        ids, is_target = _encode(self._literal, text, targets)
        is_stand_in = ids >= self._first_stand_in
        ids[is_stand_in] = self._stand_in_ids[ids[is_stand_in] - self._first_stand_in]
        written = ids[is_stand_in].tolist()
        if written != [self.controls[span.text]["id"] for span in conversation.controls]:
            raise EncodingError("a message changes how the tokenizer reads the template's control tokens")
        return ids, is_target

    @cached_property
    def _parsing(self) -> Tokenizer:
        return reference_tokenizer(self._tokenizer, parse_special_tokens=True)

    @cached_property
    def _literal(self) -> Tokenizer:
        """A tokenizer for which control tokens are ordinary text, with the stand-ins."""
        options = {"parse_special_tokens": False}
        tokenizer = reference_tokenizer(
            tokenizer_for_text(self._json, **options, control_ids=self._control_ids), **options
        )
        for content, entry in self.controls.items():
            flags = {name: entry[name] for name in ("single_word", "lstrip", "rstrip", "normalized")}
            tokenizer.add_tokens([AddedToken(_stand_in(content), **flags, special=False)])
        return tokenizer

    @cached_property
    def _first_stand_in(self) -> int:
        return min(self._literal.token_to_id(_stand_in(content)) for content in self.controls)

    @cached_property
    def _stand_in_ids(self) -> np.ndarray:
        """The ids of the control tokens in the order of their stand-ins."""
        by_stand_in: Mapping[int, Any] = {
            self._literal.token_to_id(_stand_in(content)): entry["id"]
            for content, entry in self.controls.items()
        }
        return np.array([by_stand_in[number] for number in sorted(by_stand_in)], np.uint32)

    def _with_stand_ins(self, conversation: RenderedConversation) -> tuple[str, np.ndarray]:
        text, targets = conversation.text, conversation.targets
        pieces: list[str] = []
        flags: list[np.ndarray] = []
        end = 0
        for span in conversation.controls:
            name = _stand_in(span.text)
            pieces += [text[end : span.start].replace(_BRACKET, "\N{REPLACEMENT CHARACTER}"), name]
            flags += [targets[end : span.start], np.full(len(name), _is_target(targets, span))]
            end = span.end
        pieces.append(text[end:].replace(_BRACKET, "\N{REPLACEMENT CHARACTER}"))
        return "".join(pieces), np.concatenate([*flags, targets[end:]])


def _is_target(targets: np.ndarray, span: ControlSpan) -> bool:
    return bool(targets[span.start : span.end].any())


def _stand_in(content: str) -> str:
    return f"{_BRACKET}{content}{_BRACKET}"


def _encode(tokenizer: Tokenizer, text: str, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    with library_errors():
        encoding = tokenizer.encode(text, add_special_tokens=False)
    return np.array(encoding.ids, np.uint32), _token_targets(encoding.offsets, targets)


def _token_targets(offsets: Sequence[tuple[int, int]], targets: np.ndarray) -> np.ndarray:
    """Returns which tokens have a character that is a target. A token without characters is as the next one is.

    >>> _token_targets([(0, 2), (2, 2), (2, 3)], np.array([False, False, True]))
    array([False,  True,  True])
    """
    starts, ends = np.array(offsets, np.int64).reshape(-1, 2).T
    counts = np.concatenate([[0], np.cumsum(targets)])
    next_character = np.append(targets, False)[np.minimum(starts, len(targets))]
    return np.where(ends > starts, counts[ends] > counts[starts], next_character)
