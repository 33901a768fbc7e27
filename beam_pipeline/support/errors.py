"""The errors that a user can fix. Any other exception is a bug and shows its traceback.

A runner gives the launcher a worker's error as the text of its traceback, where the name of this module marks them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


class UserError(Exception):
    """Base class of the errors that a user can fix, which are all in this module."""

    def __init_subclass__(cls) -> None:
        if cls.__module__ != __name__:
            raise TypeError(f"{cls.__name__} must be in {__name__}, or runners could not recognize it")


class UsageError(UserError):
    """The options, the input, the tokenizer or the output folder are wrong. Raised before long work starts."""


class DataError(UserError):
    """The data are wrong. The message gives the file and the place in it."""


class FileError(UserError, OSError):
    """A file cannot be read or written, according to a service or a library. The message names the file."""


class EngineMismatch(DataError):
    """An engine's ids are not HF's, or include a control token.

    Attributes:
        name: The document's file, see `DocumentBatch`.
        place: The document's place in the file, see `DocumentBatch`.
    """

    def __init__(self, message: str, name: str, place: int):
        super().__init__(message)
        self.name = name
        self.place = place


class WorkerDied(DataError):
    """A worker process of a local run died. The runner's threads may wait for it forever, so the process must exit
    without joining them.
    """


class LockLost(DataError):
    """Another run has taken over the output folder. This run must not change it any more."""


class StillRunning(DataError):
    """A submitted job cannot be followed any more, and may still run. Its files must not be deleted."""


class Terminated(KeyboardInterrupt):
    """SIGTERM asked the process to end. A plain KeyboardInterrupt is Ctrl-C."""


# Finds the messages in a worker's traceback, as a runner quotes it: of `UserError`s, by the name of this module, and of
# errors of the operating system (a full disk), by their number.
_IN_TRACEBACK = re.compile(
    rf"(?:{re.escape(__name__)}\.\w+: |\b\w*Error: (?=\[Errno))"
    r"(.*?)(?: \[while running|\n\n|\nTraceback|\Z)",
    re.DOTALL,
)

_STEP = re.compile(r" \[while running '[^']*'\]\Z")  # Beam appends this to a step's error


def one_line(error: BaseException) -> str:
    """Returns the message of an error in one line."""
    return " ".join(str(error).split())


def user_message(error: BaseException) -> str | None:
    """Returns the message of an error that a user can fix, even if a runner has wrapped it in a worker's traceback.

    These are `UserError`s, and errors of the operating system that name a file. Returns None for others.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, UserError):
            return _STEP.sub("", str(cause))
        if isinstance(cause, OSError) and cause.errno is not None and cause.filename is not None:
            return str(cause)
        messages = _IN_TRACEBACK.findall(str(cause))
        if messages:  # the last is the outermost: on a full disk only the error of closing the file names it
            return messages[-1].strip()
        cause = cause.__cause__ or cause.__context__
    return None


def quoted_message(errors: Iterable[str]) -> str | None:
    """Returns the first message for users that a job's errors quote; None if there is none. See `user_message`."""
    messages = (user_message(Exception(error)) for error in errors)
    return next((message for message in messages if message is not None), None)


def last_error(errors: Sequence[str]) -> str | None:
    """Returns the last traceback among a job's errors, or else the last error; None if there is none."""
    candidates = [error for error in errors if "Traceback" in error] or errors
    return candidates[-1].strip() if candidates else None
