"""Errors that the engines' libraries raise on a text that they cannot encode: exceptions of any kind, and panics."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tokenmill_reader.console.escaping import excerpt


class EncodingError(Exception):
    """A library cannot encode a text. The message is the library's."""


def is_panic(error: BaseException) -> bool:
    """Determines whether this is a panic of a library in Rust, each of which has its own exception class for that."""
    return type(error).__name__ == "PanicException"


@contextlib.contextmanager
def library_errors() -> Iterator[None]:
    """Context in which a library's errors are raised as EncodingError.

    A panic is a BaseException, which no `except Exception` handles. The other errors of the libraries are of the class
    Exception itself. Errors of our own code have other classes, and pass unchanged.
    """
    try:
        yield
    except BaseException as error:
        if not is_panic(error) and type(error) is not Exception:
            raise
        raise EncodingError(excerpt(" ".join(str(error).split()))) from None
