"""The states of a compiled model of words. Each serves one thread at a time; the model serves all at once."""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import lru_cache
from typing import Any

from beam_pipeline.support.locks import ForkableLock

_POLL_SECONDS = 0.001  # between two checks whether other calls have ended, which a run needs a few times


class States:
    """Lends the states of a model to calls, several of which may go on at the same time.

    Args:
        library: See `rows_library`.
        model: A model of the library.
    """

    def __init__(self, library: ctypes.CDLL, model: int):
        self._library, self._model = library, model
        self._process = os.getpid()
        self._entry = ForkableLock()  # held while a call waits until it is the only one
        # Changed by single calls of their methods, which an interrupt or a fork comes before or after.
        self._free: list[int] = []
        self._calls: set[object] = set()

    def __del__(self):
        for state in self._free:
            self._library.tokenmill_words_free_state(state)

    @contextlib.contextmanager
    def lend(self, count: int, size: int) -> Iterator[list[int]]:
        """Context with some states to encode `size` bytes. Before it, the cache gets room for new words."""
        call, states = object(), []
        try:
            with self._entry.held:
                if self._process != os.getpid():  # a fork has no other threads: their calls will not end
                    self._process, self._calls = os.getpid(), set()
                if not self._library.tokenmill_words_has_room(self._model, size):
                    while self._calls:
                        time.sleep(_POLL_SECONDS)
                    self._library.tokenmill_words_make_room(self._model, size)
                self._calls.add(call)
            while len(states) < count:
                states.append(self._take())
            yield states
        finally:
            self._calls.discard(call)
            self._free.extend(states)

    def _take(self) -> int:
        try:
            return self._free.pop()
        except IndexError:
            state = self._library.tokenmill_words_state(self._model)
            require(state)
            return state


def each(function: Callable[..., Any], states: list[int], shares: list[Any]) -> list[Any]:
    """Calls a function for each state and its share in threads. None goes on when this call has ended."""
    if len(shares) == 1:
        return [function(states[0], shares[0])]
    futures: list[Future] = []
    pool = _pool(os.getpid())
    try:
        for state, share in zip(states, shares, strict=True):
            futures.append(pool.submit(function, state, share))
    finally:
        wait(futures)  # even if one fails, or this thread is interrupted: the next call uses the states
    return [future.result() for future in futures]


@lru_cache(maxsize=1)
def _pool(process: int) -> ThreadPoolExecutor:
    """Returns the threads of a process, which a fork has not."""
    return ThreadPoolExecutor(os.cpu_count())


def require(result: int | bool | None) -> None:
    """Raises MemoryError unless a function of the library has succeeded."""
    if not result:
        raise MemoryError("there is not enough memory for tokenizing")
