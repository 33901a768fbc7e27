"""A build in the sandbox: the steps of one of Cloud Build's files, in their order."""

from __future__ import annotations

import itertools
import signal
import subprocess
import uuid
from collections.abc import Callable
from pathlib import Path

from tests.cloud_build.sandbox import Sandbox
from tests.deploy.builds import BUILT_IN, load, start_step
from tests.engines.servers import wait_for

_NUMBERS = itertools.count(1)


class Build:
    """A build.

    Args:
        sandbox: Where it runs.
        file: One of Cloud Build's files.
        values: Its substitutions.

    Attributes:
        sandbox: Where it runs.
        id: Its id.
        workspace: Its folder /workspace.
    """

    def __init__(self, sandbox: Sandbox, file: Path, **values: str):
        self.id = str(uuid.uuid4())
        folder = sandbox.folder / f"build-{next(_NUMBERS)}"
        self.workspace = folder / "workspace"
        self.workspace.mkdir(parents=True)
        self.sandbox, self._folder = sandbox, folder
        self._build = load(file)
        self._values = {**BUILT_IN, "BUILD_ID": self.id, **self._build.substitutions, **values}

    def run(self, *, stop_before: str | None = None) -> None:
        """Runs the steps that have not run, up to but not including `stop_before`. Each must succeed."""
        for step in self._build.steps:
            if step.id == stop_before:
                return
            if not self._output(step.id).exists():
                status = self.start(step.id).wait()
                assert status == 0, f"{step.id} ended with status {status}:\n{self.output(step.id)}"

    def start(self, step: str, **values: str) -> Step:
        """Starts a step, with other values of some substitutions."""
        [build_step] = [each for each in self._build.steps if each.id == step]
        with self._output(step).open("wb") as output:
            tools = self.sandbox.tools.environment
            streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
            return Step(
                self, step, start_step(build_step, self._values | values, self.workspace, tools, **streams)
            )

    def output(self, step: str) -> str:
        """Returns what a step has printed so far."""
        return self._output(step).read_text(errors="replace")

    def _output(self, step: str) -> Path:
        return self._folder / f"{step}.log"


class Step:
    """A step that has been started."""

    def __init__(self, build: Build, name: str, process: subprocess.Popen):
        self._build, self._name, self._process = build, name, process

    @property
    def output(self) -> str:
        return self._build.output(self._name)

    def wait(self) -> int:
        """Waits for its end, and returns its exit status."""
        return self._process.wait(timeout=1800)

    def wait_until(self, description: str, condition: Callable[[], bool]) -> None:
        """Waits until a condition holds, while the step runs."""
        wait_for(f"{self._name}: {description}", lambda: condition() or None, self._check_running)
        self._check_running()

    def cancel(self) -> int:
        """Sends SIGTERM to the script, and returns its exit status."""
        self._process.send_signal(signal.SIGTERM)
        return self.wait()

    def kill(self, container: str) -> None:
        """Kills the script and its container at once, as if their machine were deleted."""
        self._process.kill()
        self._build.sandbox.tools.docker("rm", "--force", container).check_returncode()
        self._process.wait()

    def _check_running(self) -> None:
        assert self._process.poll() is None, self.output
