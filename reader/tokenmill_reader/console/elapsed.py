"""Shows how long work takes whose end cannot be foreseen."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tokenmill_reader.console.terminal import shows_bars

if TYPE_CHECKING:
    from tqdm import tqdm

MOMENT = 2.0  # seconds; work that takes less is not shown


@contextmanager
def elapsed(label: str) -> Iterator[None]:
    """Shows on a terminal, in a line that vanishes, how long the work in this context takes."""
    if not shows_bars():
        yield
        return
    done = threading.Event()
    thread = threading.Thread(target=_show, args=(label, done), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _show(label: str, done: threading.Event) -> None:
    from tqdm import tqdm  # imported late, since most verbs print nothing here

    start_time = time.monotonic()
    if done.wait(MOMENT):
        return
    with tqdm(desc=label, bar_format="{desc}", leave=False) as line:
        while not done.wait(1.0):
            line.set_description_str(f"{label} [{tqdm.format_interval(time.monotonic() - start_time)}]")


@contextmanager
def ticking(bar: tqdm) -> Iterator[None]:
    """Refreshes a bar every second, so that its time advances while no step ends."""
    done = threading.Event()

    def refresh() -> None:
        while not done.wait(1.0):
            bar.refresh()

    thread = threading.Thread(target=refresh, daemon=True)
    if not bar.disable:
        thread.start()
    try:
        yield
    finally:
        done.set()
        if thread.is_alive():
            thread.join()
