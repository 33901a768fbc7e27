"""A conversation's row on a terminal: its targets, its control tokens and its roles in colours."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from itertools import groupby

import numpy as np

from beam_pipeline.sources.conversations import ROLES
from beam_pipeline.views.decoding import DecodedPiece
from tokenmill_reader.console.escaping import visible

_GREEN, _CYAN, _BOLD, _RESET = (f"\x1b[{code}m" for code in (32, 36, 1, 0))
_ROLE = re.compile(rf"\s*({'|'.join([*ROLES, 'model'])})\b", re.IGNORECASE)
"""What templates write of a role, after a control token. Gemma's write "model" for the assistant."""


class Coloured(str):
    """A text with colours, in which everything else is escaped."""


def coloured(
    pieces: Sequence[DecodedPiece], ids: Sequence[int], targets: np.ndarray, control_ids: Collection[int]
) -> Coloured:
    """Returns the text of pieces with escape sequences: targets are green, control tokens cyan and roles bold.

    Args:
        pieces: Of consecutive tokens.
        ids: Their ids.
        targets: bool [tokens]: which are targets.
        control_ids: The ids of control tokens.
    """
    return Coloured("".join(_coloured(pieces, ids, targets, control_ids)))


def _coloured(
    pieces: Sequence[DecodedPiece], ids: Sequence[int], targets: np.ndarray, control_ids: Collection[int]
) -> Iterator[str]:
    def style(piece: DecodedPiece) -> tuple[bool, bool]:
        is_target = bool(targets[piece.first])
        return is_target, not is_target and ids[piece.first] in control_ids

    after_control = False
    for (is_target, is_control), run in groupby(pieces, key=style):
        text = visible("".join(piece.text for piece in run))
        role = _ROLE.match(text) if after_control and not is_control else None
        if role is not None:
            yield f"{_BOLD}{role.group()}{_RESET}"
            text = text[role.end() :]
        colour = _GREEN if is_target else _CYAN if is_control else ""
        yield f"{colour}{text}{_RESET}" if colour and text else text
        after_control = is_control
