"""Reads the files that other programs have written for a plan."""

from __future__ import annotations

import json
from typing import Any

from tpu_trainer.support import files
from tpu_trainer.support.errors import UsageError


def read_document(option: str, path: str, writer: str) -> Any:
    """Returns the value of the JSON file that an option names.

    Raises:
        UsageError: If it cannot be read, or is not JSON. The message says which `writer` writes such files.
    """
    if not files.is_file(path):
        raise UsageError(f"--{option} is {path!r}: there is no such file")
    try:
        return json.loads(files.read_bytes(path))
    except OSError as error:
        raise UsageError(f"--{option} is {path!r}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--{option} is {path!r}: not what {writer} ({error})") from error
