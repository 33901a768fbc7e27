"""How far a requested TPU is, whatever service it was requested from."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Phase(NamedTuple):
    """How far a requested TPU is."""

    name: Literal["waiting", "failed", "unknown", "active", "preempted"]
    """preempted: Google Cloud takes the TPU away, or has done so."""
    text: str = ""
    """What it waits for, why it failed, or its unknown state."""
