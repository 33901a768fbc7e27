"""The demo runs a step again where something that decides its result has changed, and only then."""

from __future__ import annotations

import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from demo.steps import Step, StepFailed, Steps

# Copies input to output line by line and says so; fails where the input says so.
PROGRAM = """
import pathlib, sys
source, target, mode = sys.argv[1:]
text = pathlib.Path(source).read_text()
folder = pathlib.Path(target)
print(mode, "found", sorted(path.name for path in folder.iterdir()) if folder.exists() else None)
folder.mkdir(exist_ok=True)
(folder / "part").write_text(text)
if "fail" in text:
    sys.exit(7)
(folder / "whole").write_text(text)
"""


@pytest.fixture
def step(tmp_path: Path) -> Step:
    """A step that makes the folder tmp_path/out from the file tmp_path/in."""
    source, target = tmp_path / "in", tmp_path / "out"
    source.write_text("text")
    return Step(
        name="copy",
        title="Copy the text",
        command=(sys.executable, "-c", PROGRAM, str(source), str(target), "plain"),
        inputs=(source,),
        output=target,
        needed=(target / "whole",),
    )


@pytest.fixture
def steps(tmp_path: Path) -> Steps:
    return Steps(folder=tmp_path / "stamps", root=tmp_path, total=9)


def test_a_step_is_skipped_where_nothing_has_changed(steps: Steps, step: Step, tmp_path: Path, capfd) -> None:
    first = steps.run(step)
    assert first.stdout == "plain found None\n"
    assert "[1/9] Copy the text\n$ " in capfd.readouterr().out
    written = (tmp_path / "out" / "whole").stat().st_mtime_ns
    assert steps.run(step) == first
    assert (tmp_path / "out" / "whole").stat().st_mtime_ns == written
    assert capfd.readouterr().out == "[2/9] Copy the text: unchanged\n"


@pytest.mark.parametrize("change", ["input", "command"])
def test_a_change_makes_the_output_anew(steps: Steps, step: Step, tmp_path: Path, change: str) -> None:
    steps.run(step)
    if change == "input":
        (tmp_path / "in").write_text("other text")
    else:
        step = replace(step, command=(*step.command[:-1], "other"))
    assert steps.run(step).stdout.endswith("found None\n")  # what was made of the old input is gone


def test_a_missing_output_is_made_again(steps: Steps, step: Step, tmp_path: Path) -> None:
    steps.run(step)
    (tmp_path / "out" / "whole").unlink()
    steps.run(step)
    assert (tmp_path / "out" / "whole").exists()


@pytest.mark.parametrize(("resumes", "found"), [(True, "['part']"), (False, "None")])
def test_what_a_step_did_not_finish(
    steps: Steps, step: Step, tmp_path: Path, resumes: bool, found: str, capfd
) -> None:
    """It is left to a command that goes on with it, and cleared away before any other."""
    step = replace(step, resumes=resumes)
    (tmp_path / "in").write_text("fail")
    with pytest.raises(StepFailed) as failed:
        steps.run(step)
    assert failed.value.status == 7
    assert not (tmp_path / "out" / "whole").exists()
    capfd.readouterr()
    with pytest.raises(StepFailed):
        steps.run(step)
    assert f"plain found {found}\n" in capfd.readouterr().out


def test_what_lies_there_already_is_not_deleted(steps: Steps, step: Step, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("years of work")
    assert steps.run(step).stdout == "plain found ['thesis.txt']\n"


def test_a_signal_is_a_failure_with_the_shells_status(steps: Steps, step: Step) -> None:
    kill = f"import os; os.kill(os.getpid(), {int(signal.SIGKILL)})"
    with pytest.raises(StepFailed) as failed:
        steps.run(replace(step, command=(sys.executable, "-c", kill)))
    assert failed.value.status == 128 + signal.SIGKILL


def test_a_quiet_step_reads_its_stdin_and_keeps_its_output(
    steps: Steps, step: Step, tmp_path: Path, capfd
) -> None:
    echo = replace(
        step,
        command=(sys.executable, "-c", "import sys; print(sys.stdin.read().upper())"),
        output=None,
        needed=(),
        stdin=tmp_path / "in",
        quiet=True,
    )
    assert steps.run(echo).stdout == "TEXT\n"
    assert "TEXT" not in capfd.readouterr().out
