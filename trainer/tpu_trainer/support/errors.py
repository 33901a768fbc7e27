"""Exit statuses of the verbs, and the exceptions that end a verb with a message.

Any other exception is a bug and shows its traceback.
"""

from __future__ import annotations

from enum import IntEnum


class ExitStatus(IntEnum):
    """Exit statuses. docs/training.md describes what to do about each."""

    DONE = 0
    USAGE = 2
    DIVERGED = 3
    # EX_IOERR and EX_TEMPFAIL of sysexits.h.
    NOT_SAVED = 74
    INTERRUPTED = 75
    # EX_UNAVAILABLE of sysexits.h.
    CLOUD = 69


class TrainerError(Exception):
    """An error that is shown to the user as a message, without a traceback."""

    status: ExitStatus


class UsageError(TrainerError):
    """Invalid or inconsistent options, data, tokenizer or folder. The message gives the place and the remedy."""

    status = ExitStatus.USAGE


class DivergedError(TrainerError):
    """The loss or the gradient is not finite."""

    status = ExitStatus.DIVERGED


class NotSavedError(TrainerError):
    """The last state of a run, or the result of an evaluation, could not be written."""

    status = ExitStatus.NOT_SAVED


class InterruptedRun(TrainerError):
    """A signal stopped the run. Its state is saved; the same command continues it."""

    status = ExitStatus.INTERRUPTED


class NotMetError(TrainerError):
    """Other processes of the run did not come in time. The same command on all hosts starts or continues it."""

    status = ExitStatus.INTERRUPTED


class CloudError(TrainerError):
    """Google Cloud refused a request, or a job there failed. The message is Google Cloud's."""

    status = ExitStatus.CLOUD
