"""Silences the libraries' notices. Errors are exceptions and stay visible."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
from pathlib import Path

_SET_MIN_LOG_LEVEL = re.compile(rb"_ZN4absl\d+lts_\d+14SetMinLogLevelENS0_18LogSeverityAtLeastE")


def set_log_levels() -> None:
    """Sets the log levels that TensorFlow and transformers read on import, unless the user has set them."""
    # TensorFlow reports missing GPUs; transformers warns that version 5 drops TensorFlow.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")


def silence_abseil() -> None:
    """Applies TF_CPP_MIN_LOG_LEVEL to Abseil's log, which XLA writes to and which reads no environment variable.

    TensorFlow exports Abseil's setter under a name that contains Abseil's version, so this searches the library for it.
    If the library has no such name, the notices stay.
    """
    import tensorflow as tf

    level = int(os.environ.get("TF_CPP_MIN_LOG_LEVEL", "0"))
    for library in Path(tf.__file__).parent.glob("libtensorflow_framework.*"):
        with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            symbol = _SET_MIN_LOG_LEVEL.search(content)
            if symbol:
                set_min_log_level = ctypes.CDLL(str(library))[symbol[0].decode()]
                set_min_log_level(ctypes.c_int(level))
                return
