"""Whatever a tracker's library does, the program neither ends nor waits, and says once what is wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fake_tracker import FakeTracker
from tokenmill_reader.tracking import Record, Trackers, channel, names, parameters, problem, trackers

FIGURES = {"train/loss": 1.5}


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeTracker:
    return FakeTracker(tmp_path, monkeypatch)


def run(name: str = "trackio", *, steps: int = 3) -> list[str]:
    """Tracks a run and returns the problems."""
    problems = []

    def report(is_problem: bool, text: str) -> None:
        if is_problem:
            problems.append(text)

    record = Record(id="id1", name="run", folder=".", parameters={"seed": 3})
    tracked = Trackers([name], record, report=report)
    for step in range(steps):
        tracked.log(step, FIGURES)
    tracked.finish(succeeded=True)
    return problems


def test_a_library_gets_all_figures_in_order(fake: FakeTracker) -> None:
    assert run(steps=500) == []
    assert fake.calls() == [
        ["init", "run-id1", {"seed": 3}, "allow"],
        *(["log", step, FIGURES] for step in range(500)),
        ["finish"],
    ]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (
            "raise ImportError('no libfoo')",
            "cannot be used (ImportError: no libfoo); the run goes on without it",
        ),
        ("sys.exit('asked for a login')", "cannot be used (SystemExit: asked for a login)"),
        (
            "def init(**_): raise OSError('at https://me:pass@host')",
            "cannot be used (OSError: at https://…@host)",
        ),
        ("def init(**_): os.kill(os.getpid(), 9)", "ended early; the run goes on without it"),
        ("def log(*_, **__): raise ValueError('no')", "cannot log figures (ValueError: no); the run goes on"),
        ("def finish(): raise ValueError('no')", "cannot finish (ValueError: no)"),
        ("def init(**_): print('a notice'); input('a question')", "cannot be used (EOFError"),
    ],
)
def test_a_broken_library_is_a_warning(fake: FakeTracker, code: str, expected: str) -> None:
    fake.write(code)
    problems = run()
    assert problems[0].startswith(f"trackio: {expected}")
    assert problems[1:] == (["trackio: 3 sets of figures could not be logged"] if "log" in code[:8] else [])


@pytest.mark.parametrize("code", ["time.sleep(9999)", "def log(*_, **__): time.sleep(9999)"])
def test_a_library_that_hangs_gets_what_fits_and_ends_alone(
    fake: FakeTracker, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.write(code)
    monkeypatch.setattr(channel, "MOST_WAITING", 5)
    monkeypatch.setattr(trackers, "SECONDS_TO_FINISH", 0.1)
    monkeypatch.setattr(trackers, "SECONDS_ALONE", 1)
    processes = []
    start = subprocess.Popen

    def started(*arguments: object, **options: object) -> subprocess.Popen:
        processes.append(start(*arguments, **options))
        return processes[-1]

    monkeypatch.setattr(subprocess, "Popen", started)
    problems = run(steps=20_000)
    assert problems[0] == "trackio: does not keep up; some figures are left out there"
    assert problems[1] == "trackio: is not ready; it goes on alone for a while"
    assert int(problems[2].split()[1]) > 10_000
    assert processes[0].wait() == -signal.SIGALRM


def test_the_figures_of_a_killed_program_are_kept(fake: FakeTracker) -> None:
    fake.write("time.sleep(0.5)")
    script = (
        "import os; from tokenmill_reader.tracking import *; from tokenmill_reader.tracking import trackers\n"
        "trackers.SECONDS_ALONE = 600\n"
        "trackers = Trackers(['trackio'], Record(id='id1', name='run', folder='.'), report=print)\n"
        "for step in range(9): trackers.log(step, {'loss': 1.0})\n"
        "os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", script]).returncode == -signal.SIGKILL
    assert [call[1] for call in fake.calls_until("finish") if call[0] == "log"] == list(range(9))


def test_a_forked_process_sends_nothing(fake: FakeTracker) -> None:
    record = Record(id="id1", name="run", folder=".")
    tracked = Trackers(["trackio"], record, report=lambda *_: None)
    if (child := os.fork()) == 0:
        tracked.log(1, FIGURES)
        tracked.finish(succeeded=True)
        os._exit(0)
    os.waitpid(child, 0)
    tracked.log(2, FIGURES)
    tracked.finish(succeeded=True)
    assert [call[1] for call in fake.calls() if call[0] == "log"] == [2]


def test_what_is_missing_is_named_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trackio").mkdir()  # a folder is no library
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(names._MODULES, "trackio", ("trackio", "no.such"))
    message = "needs trackio, no.such; install it: pip install 'tokenmill-reader[trackio]'"
    assert problem("trackio", folder=".") == message


@pytest.mark.parametrize(
    ("environment", "login", "mode"),
    [
        ({}, "", "offline"),
        ({}, "machine api.wandb.ai login user password key", "online"),
        ({}, "machine elsewhere login user password key", "offline"),
        ({"WANDB_BASE_URL": "https://elsewhere"}, "machine elsewhere login user password key", "online"),
        ({"WANDB_API_KEY": "key"}, "", "online"),
        ({"WANDB_API_KEY": "key", "WANDB_MODE": "offline"}, "", "offline"),
        ({}, "machine", "offline"),  # damaged
    ],
)
def test_wandb_is_offline_before_a_login(
    environment: dict[str, str], login: str, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_BASE_URL", "WANDB_DIR", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "netrc").write_text(login)
    (tmp_path / "netrc").chmod(0o600)
    for name, value in (environment | {"NETRC": str(tmp_path / "netrc")}).items():
        monkeypatch.setenv(name, value)
    assert names.wandb_mode() == mode
    monkeypatch.setitem(names._MODULES, "wandb", ())
    monkeypatch.setitem(names._MODULES, "mlflow", ())
    assert (problem("wandb", folder=None) is None) == (mode == "online")
    assert "set MLFLOW_TRACKING_URI" in problem("mlflow", folder=None)
    assert problem("wandb", folder=".") is None is problem("mlflow", folder=".")


def test_parameters_are_flat_and_have_no_secrets() -> None:
    config = {
        "train": {"steps": 3, "rate": 0.5, "name": None},
        "data": {"train": "s3://key:secret@host/x", "mix": [["https://h/a?sig=abc", 2]], "flag": True},
    }
    assert parameters(config) == {
        "train.steps": 3,
        "train.rate": 0.5,
        "train.name": None,
        "data.train": "s3://…@host/x",
        "data.mix": '[["https://h/a?…", 2]]',
        "data.flag": True,
    }
