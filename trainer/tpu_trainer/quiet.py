"""Keeps notices of libraries from burying our own output. Real errors are exceptions and stay."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import sys
from pathlib import Path

_SET_MIN_LOG_LEVEL = re.compile(rb"_ZN4absl\d+lts_\d+14SetMinLogLevelENS0_18LogSeverityAtLeastE")


def before_imports() -> None:
    """Sets what the libraries read when they are imported; a value that the user has set wins."""
    # On GPUs that are not there, and on the end of TensorFlow in transformers 5.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")


def after_imports() -> None:
    """Applies TF_CPP_MIN_LOG_LEVEL to Abseil's log as well, through which XLA writes; it reads no variable itself.

    TensorFlow exports Abseil's setter under a name that holds Abseil's version, so the name is searched for. If there
    is none, the notices stay.
    """
    if "tensorflow" not in sys.modules:
        return
    for library in Path(sys.modules["tensorflow"].__file__).parent.glob("libtensorflow_framework.*"):
        with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            symbol = _SET_MIN_LOG_LEVEL.search(content)
            if symbol:
                set_min_log_level = ctypes.CDLL(str(library))[symbol[0].decode()]
                set_min_log_level(ctypes.c_int(int(os.environ["TF_CPP_MIN_LOG_LEVEL"])))
                return
