"""The workflows of GitHub run what is here, with as few rights as possible."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = {
    path.name: yaml.safe_load(path.read_text()) for path in (ROOT / ".github" / "workflows").glob("*.yml")
}


def jobs() -> list[tuple[str, dict]]:
    return [
        (f"{name}: {job}", content)
        for name, flow in WORKFLOWS.items()
        for job, content in flow["jobs"].items()
    ]


def steps(key: str) -> list[str]:
    return [step[key] for _, job in jobs() for step in job["steps"] if key in step]


def test_only_publishing_may_do_more_than_read():
    assert WORKFLOWS.keys() == {"ci.yml", "release.yml"}
    assert all(flow["permissions"] == {"contents": "read"} for flow in WORKFLOWS.values())
    rights = {name: job["permissions"] for name, job in jobs() if "permissions" in job}
    assert rights == {"release.yml: publish": {"id-token": "write"}}
    assert WORKFLOWS["release.yml"]["jobs"]["publish"]["environment"] == "pypi"


def test_actions_are_pinned_to_commits():
    assert len(steps("uses")) > 5
    assert [action for action in steps("uses") if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", action)] == []


@pytest.mark.parametrize("command", steps("run"))
def test_commands_are_targets_of_make_or_programs_here(command: str):
    program, *words = command.split()
    if program == "make":
        assert re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    elif "/" in program:
        assert (ROOT / program).stat().st_mode & 0o100
    else:
        assert program == "grep" and (ROOT / words[-1]).is_file()


def test_all_jobs_end_after_some_time():
    assert all(job["timeout-minutes"] <= 90 for _, job in jobs())
