"""Spark on loopback: a standalone cluster with Beam's job server."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from tests.engines.clusters import SLOTS, WorkerPool
from tests.engines.jvm import OPENS, java
from tests.engines.servers import ENGINES, Server, free_port

_HOME = ENGINES / "spark"
_WORKERS = 2


class Spark:
    """A standalone cluster: a master, two workers with an executor each, Beam's job server, and Python workers.

    Args:
        folder: Folder for its files and output.
        stack: Ends its processes.
    """

    name = "Spark"

    def __init__(self, folder: Path, stack: ExitStack):
        self._folder = folder
        self._stack = stack
        self._pool = WorkerPool(folder, stack)
        self._job_port = free_port()
        port = free_port()
        address = ["--host", "127.0.0.1", "--webui-port"]
        master = self._start(
            "master", "org.apache.spark.deploy.master.Master", *address, free_port(), "--port", port
        )
        master.wait_for_port(port)
        url = f"spark://127.0.0.1:{port}"
        for number in range(_WORKERS):
            self._start(
                f"worker-{number}",
                "org.apache.spark.deploy.worker.Worker",
                *(
                    *address,
                    free_port(),
                    "--cores",
                    SLOTS,
                    "--memory",
                    "1g",
                    "--work-dir",
                    folder / "work",
                    url,
                ),
            )
        # The job server is the driver of all jobs.
        settings = {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": " ".join(OPENS),
        }
        server = self._start(
            "job-server",
            "org.apache.beam.runners.spark.SparkJobServerDriver",
            *(f"--spark-master-url={url}", "--job-host=127.0.0.1", f"--job-port={self._job_port}"),
            *("--artifact-port=0", "--expansion-port=0", f"--artifacts-dir={folder / 'artifacts'}"),
            flags=[f"-D{name}={value}" for name, value in settings.items()],
        )
        server.wait_for_port(self._job_port)

    def options(self, parallelism: int) -> list[str]:
        """Returns Beam's options. Spark itself determines the parallelism."""
        return self._pool.options(self._job_port)

    def _start(self, name: str, main: str, *arguments: object, flags: list[str] | None = None) -> Server:
        flags = ["-Xmx512m", *(flags or [])]
        command = java(main, *arguments, jars=[_HOME / "jars" / "*"], flags=flags, folder=self._folder)
        env = {
            "SPARK_HOME": str(_HOME),
            "SPARK_LOCAL_DIRS": str(self._folder),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_SCALA_VERSION": "2.12",
        }
        server = Server(name, command, folder=self._folder, env=env)
        self._stack.callback(server.kill)
        return server
