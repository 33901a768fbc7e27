"""The errors that a user can mend. Everything else is a bug and shows its traceback."""

from __future__ import annotations

import re


class UsageError(Exception):
    """The options, the tokenizer or the output folder do not fit together; raised before long work starts."""


class DataError(Exception):
    """The data are not what they should be; the message names the file and the place in it."""


class WorkerDied(DataError):
    """A worker process of a local run ended; the runner's threads may wait for it for ever, so only leaving the process
    at once ends the run."""


class LockLost(DataError):
    """Another run has taken the output folder over: what is there must be left alone."""


class StillRunning(DataError):
    """A job that was submitted cannot be followed any more: what it has written must be left alone."""


class Terminated(KeyboardInterrupt):
    """The process was asked to end, by SIGTERM; a KeyboardInterrupt of another class is Ctrl-C."""


# What a runner quotes of a worker's traceback: our own errors, those of the operating system (a full disk) and of Cloud
# Storage (no right to write there).
_IN_TRACEBACK = re.compile(
    r"(?:beam_pipeline\.errors\.(?:DataError|UsageError|LockLost): |\b\w*Error: (?=\[Errno|gs://))"
    r"(.*?)(?: \[while running|\n\n|\nTraceback|\Z)",
    re.DOTALL,
)


_STEP = re.compile(r" \[while running '[^']*'\]\Z")  # what Beam adds to a step's error


def one_line(error: BaseException) -> str:
    """The message of a library's error, which may go over several lines."""
    return " ".join(str(error).split())


def message_of(error: BaseException) -> str | None:
    """The user's message in `error`, also where a runner has wrapped it as the text of a worker's traceback.

    Errors of the operating system that name a file are the user's, too. Returns None for all others.
    """
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, UsageError | DataError):
            return _STEP.sub("", str(seen))
        if isinstance(seen, OSError) and seen.errno is not None and seen.filename is not None:
            return str(seen)
        found = _IN_TRACEBACK.search(str(seen))
        if found:
            return found.group(1).strip()
        seen = seen.__cause__ or seen.__context__
    return None
