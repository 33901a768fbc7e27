"""What the libraries of the engines raise on a text that they cannot encode: errors of any kind, and panics."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator

import numpy as np

from beam_pipeline.escaping import excerpt

Flat = tuple[np.ndarray, np.ndarray]
"""The ids of several texts (unsigned integers [tokens]) and how many each text has (int64 [texts])."""

# Rust's message about a panic on stderr, with or without a backtrace.
_PANIC = re.compile(
    rb"\n?thread '[^\n]*' (?:\(\d+\) )?panicked at [^\n]*\n[^\n]*\n"
    rb"(?:stack backtrace:\n(?: +[^\n]*\n)*)?(?:note: [^\n]*\n)*"
)


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
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `_end`)
        os.dup2(self._file.fileno(), 2)

    def _end(self) -> None:
        if self._kept is None:
            return
        sys.stderr.flush()
        os.dup2(self._kept, 2)
        os.close(self._kept)
        with self._file:
            self._file.seek(0)
            others = _PANIC.sub(b"", self._file.read())
        while others:
            others = others[os.write(2, others) :]


hidden_panics = _HiddenPanics()
"""Context in which Rust's messages about panics do not reach stderr, since the panics become errors of documents. What
else is written to stderr meanwhile, by any thread, appears at the end of the block."""
