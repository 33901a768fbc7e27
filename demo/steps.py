"""Running the demo's steps: each is a command line, skipped where nothing that decides its result has changed."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


class StepFailed(Exception):
    """A step's command did not succeed; its own message is on the terminal already.

    Attributes:
      status: what the demo exits with: the command's status, or 128 + the signal that ended it.
    """

    def __init__(self, name: str, status: int):
        super().__init__(f"the step {name!r} failed with status {status}; what it said stands above")
        self.status = status if status >= 0 else 128 - status


@dataclass(frozen=True, kw_only=True)
class Step:
    """One command of the demo.

    Attributes:
      name: one word; names the step's stamp.
      title: what it does, for the terminal.
      command: the program and its arguments.
      inputs: the files whose content decides the result, besides the command.
      output: the file or folder that the command makes, and nothing else does; None where it only prints.
      needed: what of the output later steps read; all of it is there when the command is done.
      resumes: whether the command goes on with an output that it did not finish, or begins anew.
      stdin: a file that the command reads as its standard input.
      quiet: keep its output from the terminal, since the summary says the same; errors and progress are shown.
    """

    name: str
    title: str
    command: tuple[str, ...]
    inputs: tuple[Path, ...]
    output: Path | None = None
    needed: tuple[Path, ...] = ()
    resumes: bool = False
    stdin: Path | None = None
    quiet: bool = False


@dataclass(frozen=True)
class Done:
    """What a step left: its standard output and the seconds it took, now or when it was last run."""

    stdout: str
    seconds: float


class Steps:
    """Runs steps one after the other.

    A step's stamp holds the fingerprint of its command and its inputs. It is written before the command runs and
    again when it is done; so an output is made anew where anything has changed, and only then.

    Args:
      folder: where the stamps are kept.
      root: the repository: commands run there, and what is shown is relative to it.
      total: how many steps there will be.
    """

    def __init__(self, *, folder: Path, root: Path, total: int):
        self._folder = folder
        self._root = root
        self._total = total
        self._number = 0

    def run(self, step: Step) -> Done:
        """Runs a step, or finds that it need not run.

        Raises:
          StepFailed: where the command ends with another status than 0.
        """
        self._number += 1
        head = f"[{self._number}/{self._total}] {step.title}"
        stamp = self._folder / f"{step.name}.json"
        fingerprint = fingerprint_of(step.command, step.inputs)
        old = json.loads(stamp.read_text()) if stamp.exists() else None
        same = old is not None and old["fingerprint"] == fingerprint
        if same and old["done"] and all(path.exists() for path in step.needed):
            print(f"{head}: unchanged", flush=True)
            return Done(old["stdout"], old["seconds"])
        if step.output and old is not None and not (same and step.resumes):
            _remove(step.output)
        print(f"\n{head}\n$ {self._shown(step)}", flush=True)
        _write(stamp, {"fingerprint": fingerprint, "done": False})
        began = time.monotonic()
        stdout = self._call(step)
        done = Done(stdout, time.monotonic() - began)
        _write(stamp, {"fingerprint": fingerprint, "done": True, "stdout": stdout, "seconds": done.seconds})
        return done

    def _call(self, step: Step) -> str:
        """Runs the command and returns its output; errors and progress go straight to the terminal."""
        lines = []
        with (
            (step.stdin or Path(os.devnull)).open("rb") as stdin,
            subprocess.Popen(
                step.command, cwd=self._root, stdin=stdin, stdout=subprocess.PIPE, text=True, encoding="utf-8"
            ) as process,
        ):
            for line in process.stdout:
                lines.append(line)
                if not step.quiet:
                    print(line, end="", flush=True)
        if process.returncode:
            raise StepFailed(step.name, process.returncode)
        return "".join(lines)

    def _shown(self, step: Step) -> str:
        words = [self.relative(word) for word in step.command]
        return shlex.join(words) + (f" < {shlex.quote(self.relative(str(step.stdin)))}" if step.stdin else "")

    def relative(self, path: str) -> str:
        """A path below the repository as it is typed there; anything else as it is."""
        return path.removeprefix(f"{self._root}{os.sep}")


def fingerprint_of(command: Sequence[str], inputs: Sequence[Path]) -> str:
    """SHA-256 of a command, of the content of the files that it reads, and of the Python that runs it, in hex."""
    digest = hashlib.sha256(json.dumps([sys.version, list(command)]).encode())
    for path in inputs:
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        digest.update(f"\n{path} {content}".encode())
    return digest.hexdigest()


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _write(path: Path, content: dict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(content) + "\n", encoding="utf-8")
    temporary.replace(path)
