"""Shows the messages of this package's loggers on stderr, without breaking a progress bar."""

from __future__ import annotations

import logging
import sys


class _Handler(logging.Handler):
    """Writes each message above the progress bars, to what is `sys.stderr` at that time."""

    def emit(self, record: logging.LogRecord) -> None:
        from tqdm import tqdm  # imported late, since most verbs print nothing here

        try:
            tqdm.write(self.format(record), file=sys.stderr)
        except Exception:
            self.handleError(record)


def log_to_stderr() -> None:
    """Makes this process show the package's messages. Other loggers, such as Beam's, stay as they are.

    The workers of a runner do not call it: Beam collects what they log.
    """
    log = logging.getLogger("beam_pipeline")
    if not log.handlers:
        log.addHandler(_Handler())
    log.setLevel(logging.INFO)
    log.propagate = False  # or a handler that Beam adds to the root logger would repeat the messages
