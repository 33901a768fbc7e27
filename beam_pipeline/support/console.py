"""What this program writes to stdout: results, and nothing that native libraries print."""

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
