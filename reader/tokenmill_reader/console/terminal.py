"""Whether a program shows its progress, and other text that is not its result."""

from __future__ import annotations

import logging
import os
import sys
from typing import TextIO

_log = logging.getLogger(__name__)  # its level is that of the process: `logs.log_to_stderr` sets it


def is_quiet() -> bool:
    """Returns whether only results and errors are shown."""
    return _log.level >= logging.ERROR


def shows_bars(stream: TextIO | None = None) -> bool:
    """Returns whether the stream, by default stderr, is a terminal that can move its cursor, as progress bars do."""
    return not is_quiet() and (stream or sys.stderr).isatty() and os.environ.get("TERM") != "dumb"
