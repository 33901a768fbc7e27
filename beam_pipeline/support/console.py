"""Output on stdout: messages above a progress bar, and no output of native libraries."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenmill_reader.console import streams
from tokenmill_reader.console.escaping import message


def print_above(line: str) -> None:
    """Prints a message to stdout, above the progress bar."""
    from tqdm import tqdm

    tqdm.write(message(line), file=sys.stdout)
    sys.stdout.flush()


def print_document(results: Mapping[str, Any]) -> None:
    """Prints the results of a verb with --json: one document in one line."""
    streams.print_data(streams.json_line(results))


@contextlib.contextmanager
def without_stdout() -> Iterator[None]:
    """Discards all output of this process on stdout in this block, including that of native libraries.

    `tokenizers` prints every gap in a vocabulary: megabytes in one line.
    """
    if sys.stdout is None:  # it is closed, so descriptor 1 may be any file
        yield
        return
    sys.stdout.flush()
    stdout_copy = os.dup(1)
    try:
        with Path(os.devnull).open("wb") as devnull:
            os.dup2(devnull.fileno(), 1)
        yield
    finally:
        sys.stdout.flush()
        os.dup2(stdout_copy, 1)
        os.close(stdout_copy)
