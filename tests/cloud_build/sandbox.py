"""A sandbox in which Cloud Build's files run from a tag to a model, without Google Cloud.

It is in a private network (see `private_network`) in which Google's hosts are local servers: fake-gcs-server, and
stand-ins for Dataflow, the TPU API, Vertex AI and the metadata server. Dataflow's jobs run on Flink. The steps' scripts
run as they are, with the sandbox's own `docker` and `gcloud`.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.cloud_build.flink_jobs import FlinkJobs, ImagePool
from tests.cloud_build.machines import TpuWithHost, VertexWithMachine
from tests.deploy.builds import BUILT_IN
from tests.engines.clusters import Flink
from tests.google_cloud import dataflow_grpc, fake_gcs_server, private_network
from tests.google_cloud.dataflow import Dataflow
from tests.google_cloud.metadata_server import ADDRESS, HOST, MetadataServer

ROOT = Path(__file__).resolve().parents[2]
PROJECT = BUILT_IN["PROJECT_ID"]
REGION = "europe-west4"
BUCKET = f"{PROJECT}-tokenmill"
_STORAGE, _DATAFLOW, _TPU, _VERTEX = (f"127.0.0.{number}" for number in range(1, 5))
_HOSTS = {
    _STORAGE: [
        "localhost",
        socket.gethostname(),
        "storage.googleapis.com",
        "www.googleapis.com",
        "oauth2.googleapis.com",
        "iamcredentials.googleapis.com",
    ],
    _DATAFLOW: ["dataflow.googleapis.com"],
    _TPU: ["tpu.googleapis.com"],
    _VERTEX: [f"{REGION}-aiplatform.googleapis.com"],
    ADDRESS: [HOST],
}


class Tools:
    """The sandbox's `docker` and `gcloud`.

    Args:
        folder: The sandbox's folder.

    Attributes:
        environment: The variables of a program that finds them on its path.
    """

    def __init__(self, folder: Path):
        tools = folder / "tools"
        tools.mkdir()
        for name in ("docker", "gcloud"):
            command = f'exec "{sys.executable}" -S -m tests.cloud_build.{name} "$@"'
            (tools / name).write_text(f'#!/bin/sh\nexport PYTHONPATH="{ROOT}"\n{command}\n')
            (tools / name).chmod(0o755)
        self.environment = {
            "PATH": f"{tools}:/usr/local/bin:/usr/bin:/usr/sbin:/bin:/sbin",
            "SANDBOX": str(folder),
            "CURL_CA_BUNDLE": str(folder / "ca.pem"),
            **{name: os.environ[name] for name in ("STORAGE_DRIVER",) if name in os.environ},
        }

    def start(self, *command: str, **variables: str) -> subprocess.Popen:
        """Starts a program with additional variables. Its output is in the file `output` of the sandbox."""
        with (Path(self.environment["SANDBOX"]) / "output").open("ab") as output:
            return subprocess.Popen(
                command,
                env=self.environment | variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def docker(self, *words: object, **variables: str) -> subprocess.CompletedProcess[str]:
        """Runs a command of docker to its end."""
        return subprocess.run(
            ["docker", *map(str, words)],
            env=self.environment | variables,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    def containers(self) -> list[str]:
        """Returns the names of the running containers."""
        done = self.docker("ps")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


class Sandbox:
    """The sandbox. Call it in a private network, at most once per process.

    Args:
        folder: An empty folder.
        objects: The objects of the bucket by name.
        stack: Ends its processes.

    Attributes:
        storage: Cloud Storage.
        dataflow: Dataflow.
        tpu: The TPU API.
        vertex: Vertex AI.
        flink: The cluster on which Dataflow's jobs run.
        tools: `docker` and `gcloud`.
    """

    def __init__(self, folder: Path, objects: Mapping[str, bytes], stack: ExitStack):
        self.folder = folder
        private_network.write_hosts(folder / "hosts", _HOSTS)
        subprocess.run(["mount", "--bind", folder / "hosts", "/etc/hosts"], check=True)
        tls = private_network.certificate(folder, [name for names in _HOSTS.values() for name in names])
        for name, data in objects.items():
            path = folder / "buckets" / BUCKET / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        self.tools = Tools(folder)
        serving = fake_gcs_server.serving(
            folder / "buckets", port=443, tls=tls, host="storage.googleapis.com"
        )
        self.storage = stack.enter_context(serving)
        metadata = MetadataServer(PROJECT, f"build@{PROJECT}.iam.gserviceaccount.com", ADDRESS)
        stack.enter_context(metadata)
        (folder / "flink").mkdir()
        self.flink = Flink(folder / "flink", stack, pool=ImagePool(), task_managers=1)
        jobs = FlinkJobs(self.flink, self.tools.docker)
        self.dataflow = stack.enter_context(Dataflow(self.storage, jobs, PROJECT, REGION))
        self.tools.environment["DATAFLOW"] = self.dataflow.url
        stack.enter_context(dataflow_grpc.serving(self.dataflow, f"{_DATAFLOW}:443", folder))
        server_options: dict[str, Any] = {"project": PROJECT, "port": 443, "tls": tls}
        tpu = TpuWithHost(self.tools.start, metadata, folder / "host", address=_TPU, **server_options)
        self.tpu = stack.enter_context(tpu)
        self.vertex = stack.enter_context(
            VertexWithMachine(self.tools.start, address=_VERTEX, **server_options)
        )
        stack.callback(self._remove_containers)

    def remaining_resources(self) -> dict[str, list[str]]:
        """Returns what runs, or is rented, by kind. Kinds without any are missing."""
        names_by_kind = {
            "containers": self.tools.containers(),
            "Dataflow": [job.id for job in self.dataflow.active_jobs],
            "Flink": [job] if (job := self.flink.running_job()) else [],
            "TPU": ["a TPU"] if self.tpu.remaining_resources else [],
            "Vertex": self.vertex.active_jobs,
        }
        return {kind: names for kind, names in names_by_kind.items() if names}

    def objects(self, folder: str) -> dict[str, bytes]:
        """Returns the objects below a folder of the bucket, by their names relative to it."""
        url = f"gs://{BUCKET}/{folder}/"
        return {name: self.storage.read(url + name) for name in self.storage.names(url)}

    def _remove_containers(self) -> None:
        names = [path.name for path in (self.folder / "containers").glob("*")]
        if names:
            self.tools.docker("rm", "--force", *names)
        shutil.rmtree(self.folder / "buckets", ignore_errors=True)
