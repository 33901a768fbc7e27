"""The standard streams of a program, hardened once for all of its verbs: see `harden`."""

from __future__ import annotations

import codecs
import contextlib
import errno
import io
import json
import os
import re
import select
import sys
from collections.abc import Callable
from typing import Any, TextIO

from tokenmill_reader.console.escaping import visible

# Tracebacks set colors, and progress bars move the cursor, too. No other control character reaches a terminal.
_COLORS = r"\x1b\[(?:(?:0|1|3\d|9\d);?)*m"
_LOG_SEQUENCES = re.compile(rf"({_COLORS})")
_BAR_SEQUENCES = re.compile(rf"({_COLORS}|\r|\x1b\[[AK])")


class OutputLost(OSError):
    """The output that the user asked for cannot be written."""

    @property
    def closed(self) -> bool:
        """Whether its reader, such as `head`, has closed it. Then the program ends quietly."""
        return self.errno == errno.EPIPE


def harden(*, shows: bool) -> None:
    """Makes a program work with any standard streams. Call it first.

    - A closed stream becomes /dev/null, so that no other file gets its number.
    - Text that a terminal would interpret is escaped, and so is what the stream's encoding lacks.
    - If stderr cannot be written to, the messages are lost, and the work goes on. The same holds for stdout, unless the
      output is what the user asked for.

    Leaves streams alone that another program, such as a test, has replaced.

    Args:
        shows: Whether stdout is what the user asked for, so that writing raises OutputLost if it fails.
    """
    for number in range(3):
        _open_if_closed(number)
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stdout is None or sys.stdout is sys.__stdout__:
        sys.stdout = _hardened(sys.stdout, 1, visible, raises=shows)
    if sys.stderr is None or sys.stderr is sys.__stderr__:
        sys.stderr = _hardened(sys.stderr, 2, _visible_around_bars, raises=False)


def print_data(text: str) -> None:
    """Prints a line that other programs read, such as a model's text: not escaped, except on a terminal."""
    if sys.stdout.isatty():
        print(text, flush=True)
    else:
        print_unescaped(text)


def print_unescaped(text: str) -> None:
    """Prints a line as it is: data, or a text in which all that comes from outside is escaped already."""
    stream = sys.stdout
    write = stream.write_unescaped if isinstance(stream, _SafeText) else stream.write
    write(text + "\n")
    stream.flush()


def json_line(value: Any) -> str:
    """Returns JSON that stdout's encoding can represent."""
    return json.dumps(value, ensure_ascii=not is_utf8())


def is_utf8() -> bool:
    """Returns whether stdout represents every character, as a stream of text in memory, without an encoding, does."""
    return sys.stdout.encoding is None or codecs.lookup(sys.stdout.encoding).name == "utf-8"


def write_to_stderr(text: str) -> None:
    """Writes a message at once, from any thread, before the process ends. It is lost if stderr cannot be written to."""
    with contextlib.suppress(OSError):
        os.write(2, visible(text).encode())


class _Descriptor(io.FileIO):
    """A file descriptor that becomes /dev/null when a write to it fails."""

    def __init__(self, number: int, *, raises: bool):
        super().__init__(number, "wb", closefd=False)
        self._raises = raises

    def write(self, data: Any) -> int:
        try:
            # None: another program has made it non-blocking, and it is full.
            while (written := super().write(data)) is None:
                select.select([], [self], [])
            return written
        except OSError as error:
            with open(os.devnull, "wb") as devnull:  # noqa: PTH123
                os.dup2(devnull.fileno(), self.fileno())
            output_lost = OutputLost(error.errno, error.strerror, "standard output")
            if self._raises:
                raise output_lost from error
            if not output_lost.closed:
                write_to_stderr(f"standard output: {error.strerror}: what follows is lost\n")
            return len(data)


class _SafeText(io.TextIOWrapper):
    """A stream that escapes what is written to it."""

    def __init__(self, number: int, *, escape: Callable[[str], str], raises: bool, original: TextIO | None):
        super().__init__(
            io.BufferedWriter(_Descriptor(number, raises=raises)),
            encoding=original.encoding if original else "utf-8",
            errors="backslashreplace",
            line_buffering=original is not None and (original.line_buffering or original.write_through),
        )
        self._escape = escape

    def write(self, text: str) -> int:
        super().write(self._escape(text))
        return len(text)

    def write_unescaped(self, text: str) -> int:
        return super().write(text)


def _hardened(stream: TextIO | None, number: int, escape: Callable[[str], str], *, raises: bool) -> _SafeText:
    if stream is not None:
        stream.flush()
    return _SafeText(number, escape=escape, raises=raises, original=stream)


def _open_if_closed(number: int) -> None:
    try:
        os.fstat(number)
    except OSError:
        devnull = os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
        if devnull != number:
            os.dup2(devnull, number)
            os.close(devnull)
    os.set_inheritable(number, True)


def _visible_around_bars(text: str) -> str:
    is_log = "\n" in text and text.strip("\n")  # bars end no line, and separate lines by newlines alone
    parts = (_LOG_SEQUENCES if is_log else _BAR_SEQUENCES).split(text)
    return "".join(part if index % 2 else visible(part) for index, part in enumerate(parts))
