"""`python -m demo --output DIR [--input PATH …]`: text → tokenizer → shards → a trained model → filled masks."""

from __future__ import annotations

import argparse
import glob
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from demo.plan import ROOT, SPLITS, Paths, corpus_step, later_steps
from demo.steps import Done, StepFailed, Steps
from demo.summary import summary


class DemoError(Exception):
    """What the user can mend; the message says how."""


def main() -> int:
    """Runs the demo; returns the exit status: a failed step's own, 1 for text that is too little, 2 for bad options."""
    args = _parse()
    try:
        _run(args)
    except DemoError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except StepFailed as error:
        print(f"demo: {error}", file=sys.stderr)
        return error.status
    except KeyboardInterrupt:
        print("\ndemo: interrupted; the same command goes on from here", file=sys.stderr)
        return 130
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m demo", description="From text to a trained masked language model, on this machine."
    )
    add = parser.add_argument
    add("--input", nargs="+", metavar="PATH", help="text or jsonl files; default: Python's own documentation")
    add("--output", type=Path, required=True, metavar="DIR", help="folder for all that the demo makes")
    add(
        "--config",
        type=Path,
        default=ROOT / "trainer" / "configs" / "tiny-mlm.yaml",
        help="the trainer's configuration (default: trainer/configs/tiny-mlm.yaml)",
    )
    add(
        "--trainer_python",
        type=Path,
        default=ROOT / "trainer" / ".venv" / "bin" / "python",
        help="Python of the trainer's environment (default: trainer/.venv/bin/python)",
    )
    args = parser.parse_args()
    for name in ("config", "trainer_python"):
        path = getattr(args, name)
        if not path.exists():
            parser.error(
                f"--{name} {path}: there is no such file{' (make setup makes it)' * (name != 'config')}"
            )
    return args


def _run(args: argparse.Namespace) -> None:
    began = time.monotonic()
    paths = Paths(args.output.absolute())
    own = _files(args.input) if args.input else None
    steps = Steps(folder=paths.stamps, root=ROOT, total=7 if own else 8)
    if own is None:
        steps.run(corpus_step(paths))
    inputs = own or [paths.corpus]
    done: dict[str, Done] = {}
    for step in later_steps(
        paths, inputs=inputs, config=args.config.absolute(), trainer=args.trainer_python.absolute()
    ):
        done[step.name] = steps.run(step)
        if step.name == "prepare":
            _check_splits(paths)
    print("\n" + summary(paths, done, time.monotonic() - began), flush=True)


def _files(patterns: Sequence[str]) -> list[Path]:
    """The files of the user's text, each once, sorted.

    Raises:
      DemoError: where a path or a pattern is none of a file.
    """
    found: set[Path] = set()
    for pattern in patterns:
        paths = [Path(path).absolute() for path in glob.glob(pattern, recursive=True)]  # noqa: PTH207 (absolute, too)
        files = [path for path in paths if path.is_file()]
        if not files:
            reason = f"is a folder; name its files: '{pattern.rstrip('/')}/*'" if paths else "no file matches"
            raise DemoError(f"--input {pattern}: {reason}")
        found.update(files)
    return sorted(found)


def _check_splits(paths: Paths) -> None:
    """Raises DemoError where a split is empty: the later steps would have nothing to learn from or to be asked."""
    totals = {}
    for split in SPLITS:
        manifest = json.loads((paths.dataset / split / "manifest.json").read_text(encoding="utf-8"))
        totals[split] = manifest["totals"]
    empty = [split for split, total in totals.items() if not total["rows"]]
    if empty:
        documents = sum(total["documents"] for total in totals.values())
        raise DemoError(
            f"the text is too little: of its {documents} documents (lines, in a text file) none fell to the split "
            f"{empty[0]!r}, which gets {SPLITS[empty[0]]:.0%} of them; a few hundred documents are enough"
        )


if __name__ == "__main__":
    sys.exit(main())
