"""Shows the messages of this package's loggers on stderr, without breaking a progress bar."""

from __future__ import annotations

import logging
import sys

from tqdm import tqdm

from tpu_trainer.support.escaping import message


class _Handler(logging.Handler):
    """Writes each message above the progress bars, to what is `sys.stderr` at that time."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            tqdm.write(message(self.format(record)), file=sys.stderr)
            sys.stderr.flush()
        except Exception:
            self.handleError(record)


def log_to_stderr() -> None:
    """Makes this process show the package's messages. Other loggers, such as TensorFlow's, stay as they are."""
    log = logging.getLogger("tpu_trainer")
    if not log.handlers:
        log.addHandler(_Handler())
    log.setLevel(logging.INFO)
    log.propagate = False  # or a handler on the root logger, such as absl's, would repeat the messages
