"""Shows the messages of a program's loggers on stderr, without breaking a progress bar."""

from __future__ import annotations

import logging
import sys

from tokenmill_reader.console import terminal
from tokenmill_reader.console.escaping import message


class _Handler(logging.Handler):
    """Writes each message above the progress bars, to the current `sys.stderr`."""

    def emit(self, record: logging.LogRecord) -> None:
        from tqdm import tqdm  # imported late, since most verbs print nothing here

        try:
            tqdm.write(message(self.format(record)), file=sys.stderr)
            sys.stderr.flush()
        except Exception:
            self.handleError(record)


def log_to_stderr(package: str, *, quiet: bool = False) -> None:
    """Makes this process show a package's messages. Other loggers, such as Beam's and TensorFlow's, stay as they are.

    The workers of a runner do not call it: Beam collects what they log.

    Args:
        package: The package.
        quiet: Whether to show only errors, and no progress.
    """
    log = logging.getLogger(package)
    if not log.handlers:
        log.addHandler(_Handler())
    log.setLevel(logging.ERROR if quiet else logging.INFO)
    logging.getLogger(terminal.__name__).setLevel(log.level)
    # Otherwise a handler on the root logger, such as Beam's or absl's, would repeat the messages.
    log.propagate = False
