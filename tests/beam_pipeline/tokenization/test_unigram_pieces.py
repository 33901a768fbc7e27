"""Unigram training in a process of its own, so that Ctrl-C and the display of the time work."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from beam_pipeline.support.errors import WorkerDied
from beam_pipeline.tokenization import unigram_pieces
from beam_pipeline.tokenization.unigram_pieces import train_pieces

WORDS = Counter(
    {f"{first}{second}": 3 for first in ("under", "over", "out") for second in ("line", "go", "look")}
)


@pytest.fixture
def always_in_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unigram_pieces, "_FEW_WORDS", 0)


@pytest.fixture
def sigint_interrupts() -> Iterator[None]:
    """A shell's background jobs, which the tests may be, inherit an ignored SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def once_it_runs(action: Callable[[], None]) -> None:
    """Calls `action` in a thread once a child process exists."""

    def wait() -> None:
        while not multiprocessing.active_children():
            time.sleep(0.001)
        action()

    threading.Thread(target=wait, daemon=True).start()


def test_a_process_gives_the_same_pieces_and_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = train_pieces(WORDS, 300, 4)
    monkeypatch.setattr(unigram_pieces, "_FEW_WORDS", 0)
    assert train_pieces(WORDS, 300, 4) == pieces
    with pytest.raises(RuntimeError, match="Vocabulary size is smaller than required_chars"):
        train_pieces(WORDS, 50, 4)


@pytest.mark.usefixtures("always_in_a_process", "sigint_interrupts")
def test_ctrl_c_ends_the_training_and_its_process() -> None:
    once_it_runs(lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        train_pieces(WORDS, 300, 4)
    assert multiprocessing.active_children() == []


@pytest.mark.usefixtures("always_in_a_process")
def test_a_process_that_dies_is_an_error() -> None:
    once_it_runs(lambda: [child.kill() for child in multiprocessing.active_children()])
    with pytest.raises(WorkerDied, match="died, perhaps because memory ran out"):
        train_pieces(WORDS, 300, 4)
