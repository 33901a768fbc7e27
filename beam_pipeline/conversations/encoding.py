"""Rendered conversations → ids, and which of them are targets of the loss.

The ids are those of Hugging Face's tokenizer for the whole text, so they equal `apply_chat_template`'s. Its special
tokens are parsed, since the template wrote them. If a message spells one, the text is encoded with stand-ins instead:
the tokenizer parses no special tokens, but has another added token for each of those that the template wrote.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer

from beam_pipeline.conversations.control_spans import ControlSpan, control_tokens
from beam_pipeline.conversations.rendering import RenderedConversation
from beam_pipeline.conversations.traced import GENERATION
from beam_pipeline.engines.hf import reference_tokenizer
from beam_pipeline.engines.token_arrays import Documents, sums
from beam_pipeline.tokenization.control_tokens import find_control_ids, tokenizer_for_text
from beam_pipeline.tokenization.library_errors import EncodingError, library_errors

_BRACKET = chr(0x10FFFF)
"""A noncharacter, around the names of stand-ins."""


@dataclass(frozen=True)
class TokenLayout:
    """Which tokens of a conversation are targets, by its control tokens and the sections between them."""

    control_ids: np.ndarray
    """int64 [controls]: the control tokens, in their order."""
    flags: np.ndarray
    """bool [2 · controls + 1]: whether the first section, the first control token, the second section … are targets."""
    headers: np.ndarray
    """int64 [headers, 2]: where a section's first tokens are not targets: its index among the flags, and the number of
    these tokens, which `TokenTargets` knows."""
    is_fixed: bool
    """Whether the template wrote the headers."""


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
        # Text may encode to the unknown token, though no message may spell it.
        self._ids = np.array(sorted(find_control_ids(self._tokenizer, control_ids)), np.int64)
        self._header_numbers: dict[tuple[str, str], int] = {}
        self._header_ids: list[np.ndarray] = []

    def layout(self, conversation: RenderedConversation) -> TokenLayout | None:
        """Returns which tokens of a conversation are targets: those with a character that is one.

        The control tokens divide both the text and the ids into sections, most of which consist of targets or have
        none. In the others, targets follow the header of a message, whose tokens are known.

        Args:
            conversation: A plain conversation.

        Returns:
            None if its sections are not like this.
        """
        spans, targets = conversation.controls, conversation.targets
        counts = np.concatenate([[0], np.cumsum(targets)])
        flags: list[bool] = []
        headers: list[tuple[int, int]] = []
        is_fixed = True
        start, opening = 0, ""
        for span in (*spans, None):
            end = len(targets) if span is None else span.start
            count = int(counts[end] - counts[start])
            if count not in (0, end - start):
                header_end = start + int(targets[start:end].argmax())
                if count != end - header_end:
                    return None
                headers.append((len(flags), self._header(opening, conversation.text[start:header_end])))
                is_fixed = is_fixed and not (conversation.marks[start:header_end] % GENERATION).any()
            flags.append(count > 0)
            if span is not None:
                flags.append(bool(counts[span.end] > counts[span.start]))
                start, opening = span.end, span.text
        ids = np.array([self.controls[span.text]["id"] for span in spans], np.int64)
        if not np.isin(ids, self._ids).all():
            return None
        return TokenLayout(ids, np.array(flags), np.array(headers, np.int64).reshape(-1, 2), is_fixed)

    def _header(self, opening: str, header: str) -> int:
        """Returns the number of a header after a control token: the index of its ids."""
        if (opening, header) not in self._header_numbers:
            encoded = self._parsing.encode(opening + header, add_special_tokens=False)
            ids = encoded.ids[1:] if opening else encoded.ids
            if not encoded.offsets or encoded.offsets[-1][1] != len(opening + header):
                ids = [-1]  # alone, it has other tokens than before a text
            self._header_numbers[opening, header] = len(self._header_ids)
            self._header_ids.append(np.array(ids, np.int64))
        return self._header_numbers[opening, header]

    def of(
        self, layouts: Sequence[TokenLayout | None], documents: Documents
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns which tokens of conversations are targets.

        Args:
            layouts: The layout of each conversation.
            documents: Their ids.

        Returns:
            bool [tokens]; and bool [documents], false where the ids are not as in the layout.
        """
        is_control = np.isin(documents.ids, self._ids)
        fits = np.array([layout is not None for layout in layouts], bool)
        counts = np.array([0 if layout is None else len(layout.control_ids) for layout in layouts], np.int64)
        fits &= sums(is_control, documents.lengths) == counts
        is_target = np.zeros(len(documents.ids), bool)
        if fits.any():
            rows = np.repeat(fits, documents.lengths)
            chosen = [layout for layout, is_chosen in zip(layouts, fits, strict=True) if is_chosen]
            lengths = documents.lengths[fits]
            is_target[rows], fits[fits] = self._laid_out(
                chosen, documents.ids[rows], lengths, is_control[rows]
            )
        return is_target, fits

    def _laid_out(
        self, layouts: Sequence[TokenLayout], ids: np.ndarray, lengths: np.ndarray, is_control: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns what `of` does, for conversations that have as many control tokens as their layouts."""
        controls = np.flatnonzero(is_control)
        counts = np.array([len(layout.control_ids) for layout in layouts], np.int64)
        owners = np.repeat(np.arange(len(layouts)), counts)
        fits = np.ones(len(layouts), bool)
        fits[owners[ids[controls] != np.concatenate([layout.control_ids for layout in layouts])]] = False
        # The sections and the control tokens, in their order: where each begins, and how many tokens it has.
        firsts = np.cumsum(2 * counts + 1) - (2 * counts + 1)
        starts = np.empty(int((2 * counts + 1).sum()), np.int64)
        starts[firsts] = np.cumsum(lengths) - lengths
        numbers = firsts[owners] + 2 * (np.arange(len(controls)) - (np.cumsum(counts) - counts)[owners])
        starts[numbers + 1], starts[numbers + 2] = controls, controls + 1
        sizes = np.diff(starts, append=len(ids))
        is_target = np.repeat(np.concatenate([layout.flags for layout in layouts]), sizes)
        headers = np.concatenate([layout.headers for layout in layouts])
        owners = np.repeat(np.arange(len(layouts)), [len(layout.headers) for layout in layouts])
        for number in np.unique(headers[:, 1]).tolist():
            tokens = self._header_ids[number]
            has_it = headers[:, 1] == number
            sections = firsts[owners[has_it]] + headers[has_it, 0]
            is_long = sizes[sections] >= len(tokens)
            places = starts[sections[is_long], None] + np.arange(len(tokens))
            is_target[places] = False
            is_long[is_long] = (ids[places] == tokens).all(1)
            fits[owners[has_it][~is_long]] = False
        return is_target, fits

    def encode(self, conversation: RenderedConversation) -> tuple[np.ndarray, np.ndarray]:
        """Encodes a conversation by HF's tokenizer.

        Returns:
            Its ids, uint32 [tokens], and which of them are targets, bool [tokens].

        Raises:
            EncodingError: If the tokenizer cannot encode it.
        """
        controls = np.array([self.controls[span.text]["id"] for span in conversation.controls], np.int64)
        flags = np.array([_is_target(conversation.targets, span) for span in conversation.controls], bool)
        if conversation.is_plain:
            ids, is_target = _encode(self._parsing, conversation.text, conversation.targets)
            places = np.flatnonzero(np.isin(ids, self._ids))
            is_known = np.isin(controls, self._ids)
            if np.array_equal(ids[places], controls[is_known]):
                is_target[places] = flags[is_known]
                return ids, is_target
            # A message spells a token as the tokenizer normalizes texts.
        text, targets = self._with_stand_ins(conversation)
        ids, is_target = _encode(self._literal, text, targets)
        is_stand_in = ids >= self._first_stand_in
        written = self._stand_in_ids[ids[is_stand_in] - self._first_stand_in]
        if not np.array_equal(written, controls) or np.isin(ids, self._ids).any():
            raise EncodingError("a message changes how the tokenizer reads the template's control tokens")
        ids[is_stand_in], is_target[is_stand_in] = written, flags
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
        if _BRACKET in text:
            raise EncodingError("spells a control token, and has the noncharacter U+10FFFF")
        pieces: list[str] = []
        flags: list[np.ndarray] = []
        end = 0
        for span in conversation.controls:
            name = _stand_in(span.text)
            pieces += [text[end : span.start], name]
            flags += [targets[end : span.start], np.full(len(name), _is_target(targets, span))]
            end = span.end
        pieces.append(text[end:])
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
