"""The engines on loopback: a standalone Flink cluster with Beam's job server, Prism, and a pool of Python workers."""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol
from urllib.error import URLError
from urllib.request import Request, urlopen

from beam_pipeline.support.processes import kill_descendants
from tests.engines.jvm import java
from tests.engines.servers import ENGINES, ROOT, Server, free_port, wait_for

SLOTS = 2
_ENDED = ("FINISHED", "FAILED", "CANCELED")

# Memory of a task manager in MiB: 1.4 GB in all. Flink's scripts would compute most of these values.
_MEMORY = {
    "taskmanager.memory.framework.heap.size": 128,
    "taskmanager.memory.framework.off-heap.size": 128,
    "taskmanager.memory.task.heap.size": 256,
    "taskmanager.memory.task.off-heap.size": 64,
    "taskmanager.memory.managed.size": 128,
    "taskmanager.memory.network.min": 192,
    "taskmanager.memory.network.max": 192,
    "taskmanager.memory.jvm-metaspace.size": 384,
    "taskmanager.memory.jvm-overhead.min": 160,
    "taskmanager.memory.jvm-overhead.max": 160,
}


def _has_step(vertex: dict[str, Any], step: str) -> bool:
    """Whether Flink's name of a stage has a step. Beam writes steps that run together as `Near/{Compare, Join}`."""
    return step in vertex["name"].replace("{", "")


class Pool(Protocol):
    """Python workers for an engine."""

    def options(self, job_port: int) -> list[str]:
        """Returns Beam's options for a job service on this port that uses these workers."""


class WorkerPool:
    """Starts Python workers for an engine, by Beam's `boot`.

    Args:
        folder: Folder for its output.
        stack: Ends the pool.
    """

    def __init__(self, folder: Path, stack: ExitStack):
        self.port = free_port()
        command = [
            *(sys.executable, ROOT / "tests" / "engines" / "worker_pool.py"),
            *("--service_port", self.port, "--container_executable", ENGINES / "boot"),
        ]
        # `boot` runs the `python` on the path. It would install Beam's files into a new environment for each worker.
        path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
        # Functions of --filter are in the tests' modules.
        env = {"PATH": path, "RUN_PYTHON_SDK_IN_DEFAULT_ENVIRONMENT": "1", "PYTHONPATH": str(ROOT)}
        self.server = Server("worker-pool", command, folder=folder, env=env)
        stack.callback(self.server.kill)
        self.server.wait_for_port(self.port)

    def kill_workers(self) -> None:
        """Kills all workers. `boot` would start those of a killed task manager again, several times."""
        kill_descendants(self.server.pid)

    def options(self, job_port: int) -> list[str]:
        """Returns Beam's options for a job service on this port, whose workers this pool starts."""
        return [
            *("--runner", "PortableRunner", "--job_endpoint", f"127.0.0.1:{job_port}"),
            *("--environment_type", "EXTERNAL", "--environment_config", f"127.0.0.1:{self.port}"),
        ]


class Prism:
    """Beam's local runner in Go, as a process of its own.

    Args:
        folder: Folder for its output.
        stack: Ends its processes.
    """

    name = "Prism"

    def __init__(self, folder: Path, stack: ExitStack):
        self._pool = WorkerPool(folder, stack)
        self._port = free_port()
        command = [ENGINES / "prism", f"--job_port={self._port}", "--serve_http=false"]
        server = Server("prism", command, folder=folder)
        stack.callback(server.kill)
        server.wait_for_port(self._port)

    def options(self, parallelism: int) -> list[str]:
        """Returns Beam's options. Prism itself determines how many bundles run at a time."""
        return self._pool.options(self._port)


class Flink:
    """A standalone cluster: a job manager, task managers, Beam's job server, and a pool of workers.

    Args:
        folder: Folder for its files and output.
        stack: Ends its processes.
        pool: The workers; by default, a pool in this environment that task managers can share.
        task_managers: How many. With Beam's own pool, only one.
        slots: Slots of each task manager.
    """

    name = "Flink"

    def __init__(
        self,
        folder: Path,
        stack: ExitStack,
        pool: Pool | None = None,
        *,
        task_managers: int = 2,
        slots: int = SLOTS,
    ):
        self._slots = slots
        self._folder = folder
        self._stack = stack
        self._rest = free_port()
        self._job_port = free_port()
        self.pool = pool or WorkerPool(folder, stack)
        self._configure()
        entry = "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint"
        self.job_manager = self._start("job-manager", ["-Xmx512m"], entry, "--configDir", folder / "conf")
        self.task_managers = [self._start_task_manager(number) for number in range(task_managers)]
        self.job_server = self._start_job_server()
        self.task_managers[0].wait_for("all task managers in the cluster", self._all_registered)

    def options(self, parallelism: int) -> list[str]:
        """Returns Beam's options for a job with this parallelism."""
        return [*self.pool.options(self._job_port), "--parallelism", str(parallelism)]

    def task_manager_of(self, job: str, step: str) -> int:
        """Returns the number of a task manager that runs a subtask, if possible of a stage with this step."""

        def find() -> int | None:
            candidates: list[tuple[bool, int]] = []
            for vertex in self._ask(f"/jobs/{job}")["vertices"]:
                for subtask in self._ask(f"/jobs/{job}/vertices/{vertex['id']}")["subtasks"]:
                    if subtask["status"] == "RUNNING":
                        candidates.append(
                            (_has_step(vertex, step), int(subtask["taskmanager-id"].split("-")[0]))
                        )
            return max(candidates)[1] if candidates else None

        return wait_for("a task manager that runs a subtask", find)

    def wait_for_step(self, step: str, check: Callable[[], None]) -> None:
        """Waits until a stage with this step has begun in the running job. `check` raises an exception if none will."""

        def has_begun() -> bool | None:
            job = self.running_job()
            vertices = self._ask(f"/jobs/{job}")["vertices"] if job else []
            begun = [vertex for vertex in vertices if vertex["status"] in ("RUNNING", "FINISHED")]
            return any(_has_step(vertex, step) for vertex in begun) or None

        wait_for(f"the step {step}", has_begun, check)

    def kill_task_manager(self, number: int) -> None:
        self.task_managers[number].kill()

    def restart_task_manager(self, number: int) -> None:
        """Starts a task manager that was killed, and waits until the cluster has all."""
        self.task_managers[number] = self._start_task_manager(number)
        self.task_managers[number].wait_for("all task managers in the cluster", self._all_registered)

    def restart_job_server(self) -> None:
        self.job_server.kill()
        self.job_server = self._start_job_server()

    def jobs(self) -> dict[str, str]:
        """Returns the state of each job that the cluster remembers, by its id."""
        return {job["id"]: job["status"] for job in self._ask("/jobs")["jobs"]}

    def running_job(self) -> str | None:
        """Returns the id of a job that has not ended, even if it is about to restart or to fail; None if all have."""
        return next((job for job, state in self.jobs().items() if state not in _ENDED), None)

    def wait_for_the_end(self, job: str) -> str:
        """Waits until a job has ended, and returns its last state."""
        wait_for("the end of the job", lambda: self.jobs()[job] in _ENDED or None)
        return self.jobs()[job]

    def failures(self, job: str) -> list[str]:
        """Returns the errors, with their stack traces, that made the cluster restart or fail a job."""
        history = self._ask(f"/jobs/{job}/exceptions")["exceptionHistory"]["entries"]
        return [entry["stacktrace"] for entry in history]

    def end_jobs(self) -> None:
        """Cancels all jobs that have not ended."""
        while job := self.running_job():
            self.cancel(job)
            self.wait_for_the_end(job)

    def cancel(self, job: str) -> None:
        """Cancels a job, as the button on its web page does."""
        self._ask(f"/jobs/{job}?mode=cancel", method="PATCH")

    def _all_registered(self) -> bool | None:
        try:
            registered = self._ask("/taskmanagers")["taskmanagers"]
        except URLError:  # the job manager has not started yet
            return None
        return len(registered) == len(self.task_managers) or None

    def _ask(self, path: str, method: str = "GET") -> dict:
        request = Request(f"http://127.0.0.1:{self._rest}{path}", method=method)
        with urlopen(request, timeout=30) as answer:
            return json.loads(answer.read() or b"{}")

    def _configure(self) -> None:
        (self._folder / "conf").mkdir()
        settings: Mapping[str, object] = {
            "jobmanager.rpc.address": "127.0.0.1",
            "jobmanager.rpc.port": free_port(),
            "jobmanager.bind-host": "127.0.0.1",
            "rest.address": "127.0.0.1",
            "rest.bind-address": "127.0.0.1",
            "rest.port": self._rest,
            "web.refresh-interval": 100,  # answers about a job may be this old, in milliseconds
            "taskmanager.host": "127.0.0.1",
            "taskmanager.bind-host": "127.0.0.1",
            "taskmanager.numberOfTaskSlots": self._slots,
            "taskmanager.load-balance.mode": "SLOTS",
            "taskmanager.cpu.cores": 1.0,
            **{name: f"{size}m" for name, size in _MEMORY.items()},
            "taskmanager.network.sort-shuffle.min-buffers": 64,
            "classloader.resolve-order": "parent-first",
            "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.attempts": 6,  # a lost task manager takes up to three
            "restart-strategy.fixed-delay.delay": "15 s",  # a task manager keeps a dead worker for 10 s
            "pekko.startup-timeout": "300 s",  # other processes may use the cores
            "pekko.ask.timeout": "60 s",
            "heartbeat.interval": 1000,
            "heartbeat.timeout": 10_000,
            "io.tmp.dirs": self._folder,
        }
        lines = "".join(f"{name}: {value}\n" for name, value in settings.items())
        (self._folder / "conf" / "config.yaml").write_text(lines)

    def _start(self, name: str, memory: list[str], main: str, *arguments: object) -> Server:
        """Starts a JVM. Beam's jars are on the class path of all, so that the workers outlive the stages of a job."""
        flink = sorted((ENGINES / "flink" / "lib").glob("*.jar"))
        beam = [jar for jar in sorted((ENGINES / "jars").glob("*.jar")) if not jar.name.startswith("slf4j-")]
        if main.startswith("org.apache.flink"):
            beam = [jar for jar in beam if not jar.name.startswith("flink-")]
        else:
            flink = [jar for jar in flink if jar.name.startswith("log4j-")]
            beam += sorted((ENGINES / "jars").glob("slf4j-*.jar"))
        command = java(main, *arguments, jars=[*flink, *beam], flags=memory, folder=self._folder)
        server = Server(
            name, command, folder=self._folder, env={"FLINK_CONF_DIR": str(self._folder / "conf")}
        )
        self._stack.callback(server.kill)
        return server

    def _start_task_manager(self, number: int) -> Server:
        limits = ["-Xmx384m", "-XX:MaxDirectMemorySize=384m", "-XX:MaxMetaspaceSize=384m"]
        entry = "org.apache.flink.runtime.taskexecutor.TaskManagerRunner"
        # The cluster must be able to distinguish a task manager from a killed one with the same number.
        name = f"-Dtaskmanager.resource-id={number}-{uuid.uuid4().hex}"
        return self._start(
            f"task-manager-{number}", limits, entry, "--configDir", self._folder / "conf", name
        )

    def _start_job_server(self) -> Server:
        server = self._start(
            "job-server",
            ["-Xmx512m"],
            "org.apache.beam.runners.flink.FlinkJobServerDriver",
            f"--flink-master=127.0.0.1:{self._rest}",
            f"--flink-conf-dir={self._folder / 'conf'}",
            "--job-host=127.0.0.1",
            f"--job-port={self._job_port}",
            *("--artifact-port=0", "--expansion-port=0", f"--artifacts-dir={self._folder / 'artifacts'}"),
        )
        server.wait_for_port(self._job_port)
        return server
