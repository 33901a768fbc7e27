"""Shows the progress of steps that take more than a moment.

`tracked` shows the launcher's own work on a terminal. In a local run, workers report to it, and it shows a
bar: a local runner returns only when everything is done, and its workers may be other processes. So they send small
datagrams to a socket of the launcher. If a datagram is lost, the bar lags a little; nothing else depends on them.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import TextIO, TypeVar

from tokenmill_reader.console.elapsed import MOMENT
from tokenmill_reader.console.terminal import is_quiet, shows_bars

Address = tuple[str, int]

Item = TypeVar("Item")

NAMESPACES = ("prepare", "annotate", "convert", "train-tokenizer")
"""The namespaces of this program's counters in Beam."""

_SECONDS_BETWEEN_LINES = 10
_SECONDS_BETWEEN_OBSERVATIONS = 10
_BAR = "{desc:<9} {percentage:3.0f}%|{bar:30}| {n:,.0f}/{total:,.0f}{unit} [{elapsed}<{remaining}, {rate_noinv_fmt}]"
_BAR_WITH_TENTHS = _BAR.replace(",.0f", ",.1f")
_MAX_WITH_TENTHS = 10  # of fewer large units, such as MB, tenths are shown


def tracked(items: Iterable[Item], total: int, *, label: str, unit: str) -> Iterator[Item]:
    """Yields the items, with a bar on a terminal."""
    from tqdm import tqdm

    yield from tqdm(
        items,
        label,
        total,
        unit=f" {unit}",
        bar_format=_BAR,
        delay=MOMENT,
        leave=False,
        disable=not shows_bars(),
    )


def describe_counters(counts: Mapping[str, int]) -> str:
    """Lists counters for the user."""
    return ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in sorted(counts.items()))


class Reporter:
    """Reports a worker's progress. Does nothing without an address; on Dataflow, Beam's counters show progress."""

    def __init__(self, address: Address | None):
        self._address = address
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM) if address else None

    def add(self, stage: str, done: int, for_next_stage: int = 0) -> None:
        """Reports `done` more finished units of a stage, and `for_next_stage` more to do in the next stage."""
        if self._socket is not None:
            # The launcher may already be gone; the work does not depend on it.
            with contextlib.suppress(OSError):
                self._socket.sendto(json.dumps([stage, done, for_next_stage]).encode(), self._address)


class UnitProgress:
    """Reports how much of a work unit is done while it is read, since one can be a file of gigabytes."""

    def __init__(self, reporter: Reporter, stage: str, size: int):
        self._reporter, self._stage, self._size = reporter, stage, size
        self._reported = 0

    def advance(self, done: float) -> None:
        """Reports that about `done` of the unit's size is read. The last hundredth is left to `finish`."""
        more = min(int(done), self._size * 99 // 100) - self._reported
        if more > 0:
            self._reporter.add(self._stage, more)
            self._reported += more

    def finish(self, for_next_stage: int = 0) -> None:
        """Reports that the whole unit is done. See `Reporter.add`."""
        self._reporter.add(self._stage, self._size - self._reported, for_next_stage)


class ProgressDisplay:
    """Shows the progress of the current stage as a bar, or as a line every 10 s if the stream is not a terminal.

    Args:
        stages: (name, unit, scale) of each stage, in order. Counts are divided by `scale` and shown in `unit`.
        total: The total of the first stage. The reports of each stage add to the total of the next.
        stream: Where to write; stderr by default.
        delay: Seconds before anything is shown.
        observe: Called every 10 seconds, and at the end, with stage and unit → amount done.
    """

    def __init__(
        self,
        stages: list[tuple[str, str, float]],
        total: int,
        stream: TextIO | None = None,
        *,
        delay: float = 0.0,
        observe: Callable[[dict[str, float]], None] | None = None,
    ):
        self._stages = stages
        self._total = {stages[0][0]: total}
        self._done: dict[str, int] = {}
        self._stream = stream or sys.stderr
        self._delay = delay
        self._start_time = time.monotonic()
        self._bar = None
        self._shown_stage = ""
        self._last_line = 0.0
        self._observe = observe
        self._last_observation = self._start_time
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        self._socket.bind(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._listen, daemon=True)

    @property
    def address(self) -> Address:
        """The address that reporters send to."""
        return self._socket.getsockname()

    def __enter__(self) -> ProgressDisplay:
        first_stage = self._stages[0][0]
        self._done[first_stage] = 0
        self._draw(first_stage)
        self._thread.start()
        return self

    def __exit__(
        self, error_type: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.sendto(b"null", self.address)
        self._thread.join(timeout=5)
        self._socket.close()
        if self._bar is not None:
            self._bar.close()
        if self._observe is not None:
            self._observe(self._amounts())

    def _amounts(self) -> dict[str, float]:
        return {
            f"{name}_{unit}": self._done[name] / scale
            for name, unit, scale in self._stages
            if name in self._done
        }

    def _listen(self) -> None:
        while (message := json.loads(self._socket.recv(512))) is not None:
            stage, done, for_next_stage = message
            self._done[stage] = self._done.get(stage, 0) + done
            names = [name for name, _, _ in self._stages]
            if for_next_stage and names.index(stage) + 1 < len(names):
                next_stage = names[names.index(stage) + 1]
                self._total[next_stage] = self._total.get(next_stage, 0) + for_next_stage
            if done:
                self._draw(stage)
            if self._observe is not None:
                now = time.monotonic()
                if now - self._last_observation >= _SECONDS_BETWEEN_OBSERVATIONS:
                    self._last_observation = now
                    self._observe(self._amounts())

    def _draw(self, stage: str) -> None:
        _, unit, scale = next(entry for entry in self._stages if entry[0] == stage)
        done, total = self._done[stage] / scale, self._total.get(stage, 0) / scale
        tenths = scale > 1 and total < _MAX_WITH_TENTHS
        if shows_bars(self._stream):
            from tqdm import tqdm

            if self._shown_stage != stage:
                if self._bar is not None:
                    self._bar.close()
                self._bar = tqdm(
                    total=total,
                    desc=stage,
                    unit=f" {unit}",
                    bar_format=_BAR_WITH_TENTHS if tenths else _BAR,
                    file=self._stream,
                    delay=self._delay,
                    leave=not self._delay,
                )
                self._shown_stage = stage
            self._bar.total = max(total, done)
            self._bar.update(done - self._bar.n)
        elif (
            not is_quiet()
            and time.monotonic() - self._start_time >= self._delay
            and (
                self._shown_stage != stage
                or time.monotonic() - self._last_line > _SECONDS_BETWEEN_LINES
                or done >= total
            )
        ):
            self._shown_stage, self._last_line = stage, time.monotonic()
            share = f" {100 * done / total:.0f}%" if total else ""
            numbers = f"{done:,.1f} of {total:,.1f}" if tenths else f"{done:,.0f} of {total:,.0f}"
            print(f"{stage}: {numbers} {unit}{share}", file=self._stream, flush=True)
