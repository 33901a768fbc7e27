"""Shows messages without breaking a progress bar: those of this package's loggers, and no others, on stderr."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from beam_pipeline.support.escaping import message


class _Handler(logging.Handler):
    """Writes each message above the progress bars, to what is `sys.stderr` at that time."""

    def emit(self, record: logging.LogRecord) -> None:
        from tqdm import tqdm  # imported late, since most verbs print nothing here

        try:
            tqdm.write(message(self.format(record)), file=sys.stderr)
        except Exception:
            self.handleError(record)


def print_above(line: str) -> None:
    """Prints a message to stdout, above the progress bar."""
    from tqdm import tqdm

    tqdm.write(message(line), file=sys.stdout)
    sys.stdout.flush()


def log_to_stderr() -> None:
    """Makes this process show the package's messages. Other loggers, such as Beam's, stay as they are.

    The workers of a runner do not call it: Beam collects what they log.
    """
    log = logging.getLogger("beam_pipeline")
    if not log.handlers:
        log.addHandler(_Handler())
    log.setLevel(logging.INFO)
    log.propagate = False  # or a handler that Beam adds to the root logger would repeat the messages


@contextlib.contextmanager
def without_stdout() -> Iterator[None]:
    """Discards what this process writes to stdout in this block, also what a native library does.

    `tokenizers` prints every gap in a vocabulary: megabytes in one line.
    """
    if sys.stdout is None:  # it is closed, so descriptor 1 may be any file
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), 1)
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
