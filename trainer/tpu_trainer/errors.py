"""How a verb can end, other than well: with a message and an exit status of its own.

Everything else is a bug and shows its traceback.
"""

from __future__ import annotations

from enum import IntEnum


class ExitStatus(IntEnum):
    """What a process of ours returns; docs/training.md says what to do about each."""

    DONE = 0
    USAGE = 2
    DIVERGED = 3
    # The two of sysexits.h: an error of input or output; "failed for now, try again".
    NOT_SAVED = 74
    INTERRUPTED = 75
    # sysexits.h: "service unavailable".
    CLOUD = 69


class TrainerError(Exception):
    """An end with a message for the user, not a traceback."""

    status: ExitStatus


class UsageError(TrainerError):
    """The options, the data, the tokenizer or a folder do not fit; the message says which, where and what to do."""

    status = ExitStatus.USAGE


class DivergedError(TrainerError):
    """The loss or the gradient is no longer a finite number."""

    status = ExitStatus.DIVERGED


class NotSavedError(TrainerError):
    """The last state of a run could not be written."""

    status = ExitStatus.NOT_SAVED


class InterruptedRun(TrainerError):
    """A signal asked the run to end; its state is saved and the same command continues it."""

    status = ExitStatus.INTERRUPTED


class CloudError(TrainerError):
    """Google Cloud refused something, or what was launched there failed; the message is its own."""

    status = ExitStatus.CLOUD
