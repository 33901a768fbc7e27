"""`python -m beam_pipeline VERB …`"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from types import FrameType

from beam_pipeline.errors import DataError, Terminated, UsageError, WorkerDied

# Each verb's module; a module is imported only when its verb is used.
_VERBS = {
    "train-tokenizer": ("train_tokenizer", "corpus → tokenizer"),
    "prepare": ("prepare", "corpus → dataset: sharded TFRecords of token rows"),
    "verify": ("verify", "checks that a dataset is whole"),
    "inspect": ("inspection", "what a dataset holds: a record and its origin, records with some text"),
    "analyze": ("analysis", "tensorflow-transform over a dataset's statistics"),
    "follow": ("follow", "a Dataflow job, to its end"),
    "report": ("report", "a dataset's figures as one HTML page"),
}


def main() -> int:
    """Runs what the command line asks for; returns the process's exit status, see `run`."""
    verbs = "\n".join(f"  {verb:<16} {text}" for verb, (_, text) in _VERBS.items())
    usage = f"usage: python -m beam_pipeline VERB …\n\n{verbs}\n\nVERB --help lists a verb's options."
    if len(sys.argv) < 2 or sys.argv[1] not in _VERBS:
        asked = len(sys.argv) > 1 and sys.argv[1] in ("-h", "--help")
        print(usage, file=sys.stdout if asked else sys.stderr)
        return 0 if asked else 2
    return run(sys.argv[1], sys.argv[2:])


def run(verb: str, argv: Sequence[str]) -> int:
    """Runs a verb; returns the process's exit status: 0 fine, 1 bad data, 2 wrong usage.

    After SIGINT and SIGTERM it does not return: the process ends with 130 or 143, since a runner's threads would go on.
    """
    with _terminated_by_exception():
        return _run(verb, argv)


@contextlib.contextmanager
def _terminated_by_exception() -> Iterator[None]:
    """Makes SIGTERM raise an exception, so that a run can say what is left, and release what it holds."""
    if threading.current_thread() is not threading.main_thread():  # which alone gets signals
        yield
        return

    def terminate(number: int, frame: FrameType | None) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _run(verb: str, argv: Sequence[str]) -> int:
    wants_help = "-h" in argv or "--help" in argv
    try:
        if wants_help:  # without the verb's module, which imports Beam
            options = importlib.import_module("beam_pipeline.options")
            getattr(options, "parse_" + verb.replace("-", "_"))(argv)
        importlib.import_module(f"beam_pipeline.{_VERBS[verb][0]}").main(argv)
    except UsageError as error:
        print(f"{verb}: {error}", file=sys.stderr)
        return 2
    except WorkerDied as error:
        print(f"{verb}: {error}", file=sys.stderr, flush=True)
        os._exit(1)
    except KeyboardInterrupt as interrupt:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        terminated = isinstance(interrupt, Terminated)
        said = "terminated" if terminated else "interrupted"
        print("; ".join([f"{verb}: {said}", *map(str, interrupt.args)]), file=sys.stderr, flush=True)
        sys.stdout.flush()
        os._exit(128 + (signal.SIGTERM if terminated else signal.SIGINT))
    except BrokenPipeError:  # whoever read our output (`head`, say) has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (DataError, OSError) as error:
        print(f"{verb}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
