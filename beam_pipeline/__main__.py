"""The command `tokenmill VERB …`, also `python -m beam_pipeline VERB …`."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from types import FrameType

from beam_pipeline import __version__
from beam_pipeline.options.command_line import config_yaml, parse, parser_of, program
from beam_pipeline.options.verbs import VERBS
from beam_pipeline.support.errors import DataError, Terminated, UsageError, WorkerDied
from beam_pipeline.support.lean_beam import import_beam
from beam_pipeline.support.processes import collect_garbage_rarely, keep_freed_memory
from tokenmill_reader.console import streams
from tokenmill_reader.console.interrupts import prompt_interrupts
from tokenmill_reader.console.logs import log_to_stderr
from tokenmill_reader.console.spelling import suggestion, underscored

# The verbs whose modules have other names. A module is imported only if its verb is used.
_MODULES = {"train-tokenizer": "train_tokenizer", "inspect": "inspection", "analyze": "analysis"}

# The verbs whose result is what they print. The others write into a folder, and print only a summary.
_SHOW = ("verify", "inspect", "browse", "completion")
_SHOWN = {"--estimate", "--json", "--print_config", "-h", "--help"}

_log = logging.getLogger("beam_pipeline")


def main() -> int:
    """Runs the verb that the command line names. Returns the exit status; see `run`."""
    words = sys.argv[1:]
    makes = words[:1] and words[0] in VERBS and words[0] not in _SHOW
    streams.harden(shows=not makes or not _SHOWN.isdisjoint(underscored(words)))
    try:
        status = _main(words)
        sys.stdout.flush()
        return status
    except streams.OutputLost as lost:
        if not lost.closed:
            _log.error("%s", lost)
        return 1


def _main(words: Sequence[str]) -> int:
    if words[:1] == ["--version"]:
        print(f"{program()} {__version__}")
        return 0
    verbs = "\n".join(f"  {verb:<16} {config.summary()}" for verb, config in VERBS.items())
    usage = f"usage: {program()} VERB [options]\n\n{verbs}\n\nVERB --help lists the options of a verb."
    if words and words[0] in VERBS:
        return run(words[0], words[1:])
    is_help = words[:1] in (["-h"], ["--help"])
    print(usage, file=sys.stdout if is_help else sys.stderr)
    log_to_stderr("beam_pipeline")
    if words and not is_help:
        _log.error("%r is not a verb%s", words[0], suggestion(words[0], VERBS))
    return 0 if is_help else 2


def run(verb: str, argv: Sequence[str]) -> int:
    """Runs a verb.

    After SIGINT and SIGTERM this does not return. It ends the process with status 130 or 143, since a runner's threads
    would keep running.

    Returns:
        The exit status: 0 for success, 1 for bad data, 2 for wrong usage.
    """
    collect_garbage_rarely()
    keep_freed_memory()
    # Advice to install PyTorch, which no tokenizer needs; and threads for matrix products, of which there are none.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    log_to_stderr("beam_pipeline")
    with prompt_interrupts(verb), _terminated_by_exception():
        return _run(verb, argv)


@contextlib.contextmanager
def _terminated_by_exception() -> Iterator[None]:
    """Makes SIGTERM raise an exception, so that a run can release its lock and tell the user how to continue."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread receives signals
        yield
        return

    def terminate(number: int, frame: FrameType | None) -> None:
        raise Terminated

    previous = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _check_encoding(argv: Sequence[str]) -> None:
    """Refuses arguments that are not UTF-8, since manifests could not contain them."""
    for argument in argv:
        try:
            argument.encode()
        except UnicodeEncodeError as error:
            raise UsageError(f"{argument!r}: is not UTF-8; rename the file or the folder") from error


def _run(verb: str, argv: Sequence[str]) -> int:
    try:
        _check_encoding(argv)
        if "-h" in argv or "--help" in argv:
            parser_of(VERBS[verb]).print_help()
        elif "--print_config" in underscored(argv):
            streams.print_data(config_yaml(VERBS[verb], argv, ascii_only=not streams.is_utf8()))
        else:
            parsed = parse(VERBS[verb], argv)  # before the imports of the verb, which take seconds
            if verb != "completion" and parsed.config.console.quiet:
                log_to_stderr("beam_pipeline", quiet=True)
            if (
                parsed.beam_args or verb == "follow"
            ):  # before the steps, which are then Beam's; see `pipelines`
                import_beam(lean=not any(word.startswith("--runner") for word in parsed.beam_args))
            importlib.import_module(f"beam_pipeline.verbs.{_MODULES.get(verb, verb)}").main(parsed)
    except UsageError as error:
        _log.error("%s: %s", verb, error)
        return 2
    except WorkerDied as error:
        _log.error("%s: %s", verb, error)
        os._exit(1)
    except KeyboardInterrupt as interrupt:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        terminated = isinstance(interrupt, Terminated)
        cause = "terminated" if terminated else "interrupted"
        _log.error("; ".join([f"{verb}: {cause}", *map(str, interrupt.args)]))
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        os._exit(128 + (signal.SIGTERM if terminated else signal.SIGINT))
    except streams.OutputLost:
        raise
    except (DataError, OSError) as error:
        _log.error("%s: %s", verb, error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
