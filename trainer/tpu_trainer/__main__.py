"""The command `tokenmill-trainer VERB`, also `python -m tpu_trainer VERB`."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Sequence

from tokenmill_reader.console import streams
from tokenmill_reader.console.escaping import message
from tokenmill_reader.console.interrupts import prompt_interrupts
from tokenmill_reader.console.logs import log_to_stderr
from tokenmill_reader.console.spelling import underscored
from tpu_trainer import __version__
from tpu_trainer.devices.tensorflow.tpu_host import uses_local_tpu
from tpu_trainer.support import quiet
from tpu_trainer.support.errors import ExitStatus, TrainerError
from tpu_trainer.verbs.command_line import SHELLS, VERBS, completion_script, overview, parse, program

# For all other verbs, what they write into a folder counts, and stdout has only a summary.
_SHOW = ("plan", "compare", "generate", "fill-mask", "compile-check")
_SHOWN = {"-h", "--help", "--json", "--print_config"}


def main() -> int:
    """Runs the verb of the command line and returns the exit status."""
    makes = sys.argv[1:2] and sys.argv[1] in VERBS and sys.argv[1] not in _SHOW
    streams.harden(shows=not makes or not _SHOWN.isdisjoint(underscored(sys.argv)))
    try:
        status = _main()
        sys.stdout.flush()
        return status
    except streams.OutputLost as lost:
        if not lost.closed:
            print(f"{program()}: error: {lost}", file=sys.stderr)
        return 1


def _main() -> int:
    if sys.argv[1:2] == ["--version"]:
        print(f"{program()} {__version__}")
        return ExitStatus.DONE
    if not sys.argv[1:] or sys.argv[1] in ("-h", "--help"):
        print(overview(), file=sys.stdout if sys.argv[1:] else sys.stderr)
        return ExitStatus.DONE if sys.argv[1:] else ExitStatus.USAGE
    if sys.argv[1] == "completion":
        return _complete(sys.argv[2:])
    quiet.set_log_levels()
    log_to_stderr("tpu_trainer")
    # transformers finds TensorFlow by the name of its distribution and does not know tensorflow-tpu.
    os.environ.setdefault("FORCE_TF_AVAILABLE", "1")
    # The batches to tokenize are small: a thread pool would only compete with training for cores.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        verb, config = parse()
        if verb != "compile-check" and not uses_local_tpu(
            verb, config
        ):  # compile-check needs libtpu's compiler
            os.environ.setdefault("TPU_LOAD_LIBRARY", "0")
        with prompt_interrupts(program()):
            importlib.import_module(f"tpu_trainer.verbs.{verb.replace('-', '_')}").main(config)
    except TrainerError as error:
        print(message(f"{program()}: error: {error}"), file=sys.stderr)
        return error.status
    except KeyboardInterrupt:
        print(f"{program()}: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    return ExitStatus.DONE


def _complete(arguments: Sequence[str]) -> int:
    if len(arguments) != 1 or arguments[0] not in SHELLS:
        print(f"usage: {program()} completion {{{','.join(SHELLS)}}}", file=sys.stderr)
        return ExitStatus.USAGE
    streams.print_data(completion_script(arguments[0]))
    return ExitStatus.DONE


if __name__ == "__main__":
    sys.exit(main())
