"""Runs Cloud Build's files locally: resolves substitutions and runs steps one after the other, with fake tools."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.cloud.devtools import cloudbuild_v1
from google.protobuf import json_format

ROOT = Path(__file__).resolve().parents[2]
FILES = [ROOT / "cloudbuild.yaml", *sorted((ROOT / "deploy" / "cloudbuild").glob("*.yaml"))]
BUILT_IN = {
    "PROJECT_ID": "my-project",
    "BUILD_ID": "0a1b2c3d-0000-4000-8000-000000000000",
    "COMMIT_SHA": "1234567890abcdef1234567890abcdef12345678",
    "TAG_NAME": "v1.0",
}
VARIABLE = re.compile(r"\$\{(\w+)\}|\$(\w+)")
Answers = Sequence[tuple[str, int, str]]


def load(path: Path) -> cloudbuild_v1.Build:
    """Parses a file as the API's message type, which rejects unknown fields and values."""
    message = cloudbuild_v1.Build.pb(cloudbuild_v1.Build())
    json_format.ParseDict(yaml.safe_load(path.read_text()), message)
    return cloudbuild_v1.Build.wrap(message)


def resolve(text: str, values: Mapping[str, str]) -> str:
    """Replaces the substitutions in `text`, including nested ones.

    Raises:
        KeyError: If a substitution is not defined.
    """
    while VARIABLE.search(text):
        text = VARIABLE.sub(lambda match: values[match[1] or match[2]], text)
    return text


def start_step(
    step: cloudbuild_v1.BuildStep,
    values: Mapping[str, str],
    workspace: Path,
    environment: Mapping[str, str],
    **options: Any,
) -> subprocess.Popen:
    """Starts a step's script in the repository.

    Args:
        step: The step.
        values: The substitutions.
        workspace: The folder in place of /workspace.
        environment: Variables in addition to those of the step.
        options: Arguments of `subprocess.Popen`.
    """
    path = workspace.parent / f"{step.id}.sh"
    path.write_text(step.script.replace("/workspace", str(workspace)))
    step_environment = dict(resolve(each, values).split("=", 1) for each in step.env)
    return subprocess.Popen(
        ["bash", path], env={**environment, **step_environment}, cwd=ROOT, text=True, **options
    )


def run_trainer(*words: str) -> str:
    """Runs the trainer's Python in its own environment and returns what it prints."""
    python = ROOT / "trainer" / ".venv" / "bin" / "python"
    if not python.exists():
        pytest.skip("no trainer/.venv: make setup")
    result = subprocess.run([python, *words], capture_output=True, text=True, cwd=ROOT / "trainer")
    assert result.returncode == 0, result.stderr
    return result.stdout


@dataclass(frozen=True)
class Outcome:
    """The result of a build."""

    failed_step: str | None
    """The step that failed, or None."""
    error: str
    """Its stderr."""
    calls: list[list[str]]
    """The calls of tools, in order."""
    workspace: Path

    def calls_of(self, *words: str) -> list[list[str]]:
        """Returns the calls that begin with `words`."""
        return [call for call in self.calls if call[: len(words)] == list(words)]


class Machine:
    """A machine that runs builds, with a folder as /workspace and fake tools.

    Args:
        folder: An empty folder.
        answers: (pattern, exit status, output) of calls. The first pattern that matches a call applies.
    """

    def __init__(self, folder: Path, answers: Answers):
        self.workspace, self.tools = folder / "workspace", folder / "tools"
        for new_folder in (self.workspace, self.tools):
            new_folder.mkdir()
        source = Path(__file__).with_name("recorded_tool.py").read_text()
        for tool in ("gcloud", "kubectl", "docker"):
            (self.tools / tool).write_text(f"#!{sys.executable} -S\n{source}")
            (self.tools / tool).chmod(0o755)
        (self.tools / "commands.json").write_bytes(Path(__file__).with_name("commands.json").read_bytes())
        self._calls, self._answers = folder / "calls", folder / "answers"
        self._calls.touch()
        self._answers.write_text(json.dumps(answers))

    def start(
        self, step: cloudbuild_v1.BuildStep, values: Mapping[str, str], **variables: str
    ) -> subprocess.Popen:
        """Starts a step's script, with additional variables."""
        tools = {"CALLS": str(self._calls), "ANSWERS": str(self._answers), **variables}
        tools["PATH"] = f"{self.tools}:{os.environ['PATH']}"
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        return start_step(step, values, self.workspace, tools, **streams)

    def run(self, build: cloudbuild_v1.Build, **values: str) -> Outcome:
        """Runs the steps of a build in order, up to the first failure. `values` are substitutions."""
        substitutions = {**BUILT_IN, **build.substitutions, **values}
        for step in build.steps:
            process = self.start(step, substitutions)
            _, error = process.communicate(timeout=60)
            if process.returncode != 0:
                return self.outcome(step.id, error)
        return self.outcome(None, "")

    def outcome(self, failed_step: str | None, error: str) -> Outcome:
        calls = [json.loads(line) for line in self._calls.read_text().splitlines()]
        return Outcome(failed_step=failed_step, error=error, calls=calls, workspace=self.workspace)
