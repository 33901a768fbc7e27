"""`python -m beam_pipeline VERB …`"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from beam_pipeline.errors import DataError, UsageError, WorkerDied

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
    """Runs a verb; returns the process's exit status: 0 fine, 1 bad data, 2 wrong usage."""
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
    except BrokenPipeError:  # whoever read our output (`head`, say) has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (DataError, OSError) as error:
        print(f"{verb}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
