"""The names of the folders in which runs keep what they have not published yet."""

from __future__ import annotations

import re

_NAME = re.compile(r"[0-9a-f]{16}")


def run_folder_name(fingerprint: str) -> str:
    """Returns the name of a run's folder: the first digits of its fingerprint."""
    return fingerprint[:16]


def is_run_folder(name: str) -> bool:
    """Whether a folder has the name of a run's folder."""
    return _NAME.fullmatch(name) is not None
