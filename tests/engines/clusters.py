"""The engines on loopback: a standalone Flink cluster with Beam's job server, Prism, and a pool of Python workers."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

from tests.engines.servers import ENGINES, Server, free_port

SLOTS = 2
_TASK_MANAGERS = 2

# Flink's own scripts, which PyPI's package lacks, open these packages to it on Java 17.
_OPENS = [
    f"--add-opens=java.base/{name}=ALL-UNNAMED"
    for name in (
        *("java.lang", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.text", "java.time"),
        *("java.util", "java.util.concurrent", "java.util.concurrent.atomic", "java.util.concurrent.locks"),
        "sun.nio.ch",
    )
]

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


class WorkerPool:
    """Starts Python workers for an engine, by Beam's `boot`.

    Args:
        folder: Folder for its output.
        stack: Ends the pool.
    """

    def __init__(self, folder: Path, stack: ExitStack):
        self.port = free_port()
        command = [
            *(sys.executable, "-m", "apache_beam.runners.worker.worker_pool_main"),
            *("--service_port", self.port, "--container_executable", ENGINES / "boot"),
        ]
        # `boot` runs the `python` on the path. It would install Beam's files into a new environment for each worker.
        path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
        env = {"PATH": path, "RUN_PYTHON_SDK_IN_DEFAULT_ENVIRONMENT": "1"}
        self.server = Server("worker-pool", command, folder=folder, env=env)
        stack.callback(self.server.kill)
        self.server.wait_for_port(self.port)

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
    """A standalone cluster: a job manager, two task managers, Beam's job server, and a pool of workers.

    Args:
        folder: Folder for its files and output.
        stack: Ends its processes.
    """

    name = "Flink"

    def __init__(self, folder: Path, stack: ExitStack):
        self._folder = folder
        self._stack = stack
        self._rest = free_port()
        self._job_port = free_port()
        self.pool = WorkerPool(folder, stack)
        self._configure()
        entry = "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint"
        self._start("job-manager", ["-Xmx512m"], entry, "--configDir", folder / "conf")
        self.task_managers = [self._start_task_manager(number) for number in range(_TASK_MANAGERS)]
        self.job_server = self._start_job_server()
        self.task_managers[0].wait_for("both task managers in the cluster", self._all_registered)

    def options(self, parallelism: int) -> list[str]:
        """Returns Beam's options for a job with this parallelism."""
        return [*self.pool.options(self._job_port), "--parallelism", str(parallelism)]

    def kill_task_manager(self, number: int) -> None:
        self.task_managers[number].kill()

    def restart_task_manager(self, number: int) -> None:
        """Starts a task manager that was killed, and waits until the cluster has both."""
        self.task_managers[number] = self._start_task_manager(number)
        self.task_managers[number].wait_for("both task managers in the cluster", self._all_registered)

    def restart_job_server(self) -> None:
        self.job_server.kill()
        self.job_server = self._start_job_server()

    def jobs(self) -> dict[str, str]:
        """Returns the state of each job that the cluster remembers, by its id."""
        return {job["id"]: job["status"] for job in self._ask("/jobs")["jobs"]}

    def running_job(self) -> str | None:
        """Returns the id of the running job; None if no job runs."""
        return next((job for job, state in self.jobs().items() if state == "RUNNING"), None)

    def cancel(self, job: str) -> None:
        """Cancels a job, as the button on its web page does."""
        self._ask(f"/jobs/{job}?mode=cancel", method="PATCH")

    def _all_registered(self) -> bool | None:
        try:
            found = self._ask("/taskmanagers")["taskmanagers"]
        except URLError:  # the job manager has not started yet
            return None
        return len(found) == _TASK_MANAGERS or None

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
            "taskmanager.host": "127.0.0.1",
            "taskmanager.bind-host": "127.0.0.1",
            "taskmanager.numberOfTaskSlots": SLOTS,
            "taskmanager.load-balance.mode": "SLOTS",
            "taskmanager.cpu.cores": 1.0,
            **{name: f"{size}m" for name, size in _MEMORY.items()},
            "taskmanager.network.sort-shuffle.min-buffers": 64,
            "classloader.resolve-order": "parent-first",
            "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.attempts": 4,  # a lost task manager takes two
            "restart-strategy.fixed-delay.delay": "1 s",
            "heartbeat.interval": 1000,
            "heartbeat.timeout": 10_000,
            "io.tmp.dirs": self._folder,
        }
        lines = "".join(f"{name}: {value}\n" for name, value in settings.items())
        (self._folder / "conf" / "config.yaml").write_text(lines)
        (self._folder / "conf" / "log4j2.properties").write_text(
            "rootLogger.level = INFO\n"
            "rootLogger.appenderRef.console.ref = Console\n"
            "appender.console.type = CONSOLE\n"
            "appender.console.name = Console\n"
            "appender.console.layout.type = PatternLayout\n"
            "appender.console.layout.pattern = %d{HH:mm:ss,SSS} %-5p %c{1} - %m%n\n"
        )

    def _start(self, name: str, memory: list[str], main: str, *arguments: object) -> Server:
        """Starts a JVM. Beam's jars are on the class path of all, so that the workers outlive the stages of a job."""
        flink = sorted((ENGINES / "flink" / "lib").glob("*.jar"))
        beam = [jar for jar in sorted((ENGINES / "jars").glob("*.jar")) if not jar.name.startswith("slf4j-")]
        if main.startswith("org.apache.flink"):
            beam = [jar for jar in beam if not jar.name.startswith("flink-")]
        else:
            flink = [jar for jar in flink if jar.name.startswith("log4j-")]
            beam += sorted((ENGINES / "jars").glob("slf4j-*.jar"))
        logging = f"-Dlog4j.configurationFile=file:{self._folder / 'conf' / 'log4j2.properties'}"
        # Short-lived processes: the first compiler and the simple collector take the least CPU time.
        flags = [*memory, *_OPENS, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", logging]
        command = ["java", *flags, "-cp", ":".join(map(str, [*flink, *beam])), main, *arguments]
        server = Server(
            name, command, folder=self._folder, env={"FLINK_CONF_DIR": str(self._folder / "conf")}
        )
        self._stack.callback(server.kill)
        return server

    def _start_task_manager(self, number: int) -> Server:
        limits = ["-Xmx384m", "-XX:MaxDirectMemorySize=384m", "-XX:MaxMetaspaceSize=384m"]
        entry = "org.apache.flink.runtime.taskexecutor.TaskManagerRunner"
        return self._start(f"task-manager-{number}", limits, entry, "--configDir", self._folder / "conf")

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
