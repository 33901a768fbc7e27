"""Turns errors of file systems and of Google's clients into errors that name the file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from beam_pipeline.support.errors import FileError


@contextlib.contextmanager
def plain_errors(path: str) -> Iterator[None]:
    """Turns errors of Google's clients (missing permissions or credentials, time-outs) into FileErrors of the path."""
    try:
        with path_in_errors(path):
            yield
    except Exception as error:
        if not is_service_error(error):
            raise
        raise FileError(f"{path}: {_service_message(error)}") from error


def is_service_error(error: Exception) -> bool:
    """Returns whether an exception is of one of Google's clients. Importing their classes would take longer."""
    return type(error).__module__.startswith("google.")


@contextlib.contextmanager
def path_in_errors(path: str, *, instead_of: str | None = None) -> Iterator[None]:
    """Adds the path to errors of the operating system that name no file (a full disk, a limit on a file's size)."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename in (None, instead_of) and error.filename2 is None:
            error.filename = path
        raise


def _service_message(error: Exception) -> str:
    """Returns the service's message. The error of a rejected upload has it only in its response."""
    response = getattr(error, "response", None)
    try:
        return f"{response.status_code} {response.json()['error']['message']}"
    except (AttributeError, KeyError, TypeError, ValueError):  # no response, or not in the usual form
        return str(error)
