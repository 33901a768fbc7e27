"""Texts that an engine cannot encode: errors of its library, and panics, which write to stderr by themselves."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from beam_pipeline.engines.token_arrays import FlatIds
from beam_pipeline.tokenization.library_errors import EncodingError, library_errors

# The lines of Rust's message about a panic on stderr: the first, a line of text, and perhaps a backtrace.
_PANIC_BEGINS = re.compile(rb"thread '[^\n]*panicked at ")
_PANIC_CONTINUES = re.compile(rb"stack backtrace:| +\d+: | +at |note: ")


def encode_singly_if_needed(
    encode: Callable[[Sequence[str]], FlatIds], texts: Sequence[str]
) -> tuple[FlatIds, dict[int, str]]:
    """Encodes texts at once, or one by one if that fails: a text that fails may take as long as thousands of others.

    Returns:
        The ids and lengths of the texts that can be encoded, and the error of each other text by its index.
    """
    empty = np.empty(0, np.uint32), np.empty(0, np.int64)
    flats, errors = [empty], {}
    pending = [range(len(texts))]
    while pending:
        indices = pending.pop()
        try:
            with library_errors():
                flats.append(encode(texts[indices.start : indices.stop]))
        except EncodingError as error:
            if len(indices) == 1:
                errors[indices.start] = str(error)
            else:
                pending += [indices[index : index + 1] for index in reversed(range(len(indices)))]
    ids, lengths = map(np.concatenate, zip(*flats, strict=True))
    return (ids, lengths), errors


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
                self._start_filter()
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    self._stop_filter()

    def _start_filter(self) -> None:
        self._stderr = None
        if sys.stderr is None:  # it is closed, so descriptor 2 may be any file
            return
        sys.stderr.flush()
        self._stderr = os.dup(2)
        read_end, write_end = os.pipe()
        os.dup2(write_end, 2)
        os.close(write_end)
        self._thread = threading.Thread(target=_forward, args=(read_end, self._stderr), daemon=True)
        self._thread.start()

    def _stop_filter(self) -> None:
        if self._stderr is None:
            return
        sys.stderr.flush()
        os.dup2(self._stderr, 2)  # closes the pipe
        self._thread.join()
        os.close(self._stderr)


def _forward(read_end: int, target: int) -> None:
    """Copies a pipe to a file descriptor without delay, and leaves out messages about panics."""
    with open(read_end, "rb", buffering=0) as pipe:
        pending, blank, state = b"", b"", _OTHER_LINE
        while chunk := pipe.read(1 << 16):
            *lines, pending = (pending + chunk).split(b"\n")
            passed_lines = []
            for line in lines:
                state = _next_state(state, line)
                passed_lines.append(blank + line + b"\n" if state is _OTHER_LINE and line else b"")
                blank = b"" if line or state is not _OTHER_LINE else blank + b"\n"  # may precede a panic
            if state is _OTHER_LINE and not b"thread '".startswith(pending[:8]):
                passed_lines.append(blank + pending)  # a line that is not finished, such as a progress bar
                pending = blank = b""
            _write(target, b"".join(passed_lines))
        _write(target, blank + pending if state is _OTHER_LINE else b"")


_OTHER_LINE, _FIRST_LINE, _FURTHER_LINE = "other", "first line of a panic", "further line of a panic"


def _next_state(state: str, line: bytes) -> str:
    if _PANIC_BEGINS.match(line):
        return _FIRST_LINE
    if state is _FIRST_LINE or (state is _FURTHER_LINE and _PANIC_CONTINUES.match(line)):
        return _FURTHER_LINE
    return _OTHER_LINE


def _write(target: int, data: bytes) -> None:
    while data:
        data = data[os.write(target, data) :]


hidden_panics = _HiddenPanics()
"""Context in which Rust's messages about panics do not reach stderr, since the panics become errors of documents. All
other output to stderr, from any thread, passes."""
