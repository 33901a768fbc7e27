"""What the libraries of the engines raise on a text that they cannot encode: errors of any kind, and panics."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator

import numpy as np

from tokenmill_reader.console.escaping import excerpt

Flat = tuple[np.ndarray, np.ndarray]
"""The ids of several texts (unsigned integers [tokens]) and how many each text has (int64 [texts])."""

# The lines of Rust's message about a panic on stderr: the first, a line of text, and perhaps a backtrace.
_PANIC_BEGINS = re.compile(rb"thread '[^\n]*panicked at ")
_PANIC_GOES_ON = re.compile(rb"stack backtrace:| +\d+: | +at |note: ")


class EncodingError(Exception):
    """A library cannot encode a text. The message is its own."""


def is_panic(error: BaseException) -> bool:
    """Whether this is a panic of a library in Rust. Each library has an exception class of its own for that."""
    return type(error).__name__ == "PanicException"


@contextlib.contextmanager
def library_errors() -> Iterator[None]:
    """Raises EncodingError for what a library raises in this block.

    A panic is a BaseException, so that it passes everything that handles errors. The other errors are of the class
    Exception itself. Those of our own code are not, and pass.
    """
    try:
        yield
    except BaseException as error:
        if not is_panic(error) and type(error) is not Exception:
            raise
        raise EncodingError(excerpt(" ".join(str(error).split()))) from None


def encode_singly_if_needed(
    encode: Callable[[list[str]], Flat], texts: list[str]
) -> tuple[Flat, dict[int, str]]:
    """Encodes texts at once, or one by one if that fails: a text that fails may take as long as thousands of others.

    Returns:
        The ids and lengths of the texts that can be encoded, and the error of each other text by its index.
    """
    empty = np.empty(0, np.uint32), np.empty(0, np.int64)
    flats, failed = [empty], {}
    waiting = [range(len(texts))]
    while waiting:
        part = waiting.pop()
        try:
            with library_errors():
                flats.append(encode(texts[part.start : part.stop]))
        except EncodingError as error:
            if len(part) == 1:
                failed[part.start] = str(error)
            else:
                waiting += [part[index : index + 1] for index in reversed(range(len(part)))]
    ids, lengths = map(np.concatenate, zip(*flats, strict=True))
    return (ids, lengths), failed


class _HiddenPanics:
    """Removes Rust's messages about panics from stderr. See `hidden_panics`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._begin()
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    self._end()

    def _begin(self) -> None:
        self._kept = None
        if sys.stderr is None:  # it is closed, so descriptor 2 may be any file
            return
        sys.stderr.flush()
        self._kept = os.dup(2)
        read, write = os.pipe()
        os.dup2(write, 2)
        os.close(write)
        self._thread = threading.Thread(target=_forward, args=(read, self._kept), daemon=True)
        self._thread.start()

    def _end(self) -> None:
        if self._kept is None:
            return
        sys.stderr.flush()
        os.dup2(self._kept, 2)  # closes the pipe
        self._thread.join()
        os.close(self._kept)


def _forward(read: int, target: int) -> None:
    """Copies what is written to a pipe, at once, but for messages about panics."""
    with open(read, "rb", buffering=0) as pipe:
        pending, blank, state = b"", b"", _OTHER
        while chunk := pipe.read(1 << 16):
            *lines, pending = (pending + chunk).split(b"\n")
            others = []
            for line in lines:
                state = _next_state(state, line)
                others.append(blank + line + b"\n" if state is _OTHER and line else b"")
                blank = b"" if line or state is not _OTHER else blank + b"\n"  # may precede a panic
            if state is _OTHER and not b"thread '".startswith(pending[:8]):
                others.append(blank + pending)  # a line that is not finished, such as a progress bar
                pending = blank = b""
            _write(target, b"".join(others))
        _write(target, blank + pending if state is _OTHER else b"")


_OTHER, _FIRST, _FURTHER = "other", "first line of a panic", "further line of a panic"


def _next_state(state: str, line: bytes) -> str:
    if _PANIC_BEGINS.match(line):
        return _FIRST
    if state is _FIRST or (state is _FURTHER and _PANIC_GOES_ON.match(line)):
        return _FURTHER
    return _OTHER


def _write(target: int, data: bytes) -> None:
    while data:
        data = data[os.write(target, data) :]


hidden_panics = _HiddenPanics()
"""Context in which Rust's messages about panics do not reach stderr, since the panics become errors of documents. What
else is written to stderr meanwhile, by any thread, passes."""
