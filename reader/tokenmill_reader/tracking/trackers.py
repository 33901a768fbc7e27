"""The trackers of a run, as a program uses them."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from tokenmill_reader.tracking.channel import Channel

SECONDS_TO_FINISH = 10.0
"""Longest wait for trackers at the end of a run."""
SECONDS_ALONE = 60
"""Longest time that the process of a tracker goes on after the run."""


def names_of(text: str | None) -> tuple[str, ...]:
    """Returns the trackers of an option's value, such as wandb,mlflow; each once."""
    return tuple(dict.fromkeys(name.strip() for name in text.split(","))) if text else ()


@dataclass(frozen=True, kw_only=True)
class Record:
    """What a tracker calls a run."""

    id: str
    """Letters, digits, - and _. A record with this id is continued."""
    name: str
    """For people."""
    folder: str
    """Local folder for the files of a tracker that writes some, unless its environment variables name another."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Name → number, string or None. See `parameters.parameters`."""


class Trackers:
    """Sends figures to trackers. No method raises or waits, except that `finish` waits for some seconds."""

    def __init__(self, names: Iterable[str], record: Record, *, report: Callable[[bool, str], None]) -> None:
        """
        Args:
            names: The trackers'.
            record: The run.
            report: Called with what trackers report: whether it is a problem, and the text. May be called by any
                method, in its thread.
        """
        opening = asdict(record)
        self._channels = {
            name: Channel(name, opening=opening, seconds_alone=SECONDS_ALONE, report=report) for name in names
        }

    def log(self, step: int, figures: Mapping[str, float], *, names: Container[str] | None = None) -> None:
        """Logs figures of a step. Steps must not go back. With `names`, only these trackers get them."""
        for name, channel in self._channels.items():
            if names is None or name in names:
                channel.send({"step": step, "figures": dict(figures)})

    def finish(self, *, succeeded: bool) -> None:
        """Ends the records. Waits for at most `SECONDS_TO_FINISH`, then lets trackers go on alone."""
        for channel in self._channels.values():
            channel.send({"succeeded": succeeded})
        deadline = time.monotonic() + SECONDS_TO_FINISH
        for channel in self._channels.values():
            channel.wait(deadline)
