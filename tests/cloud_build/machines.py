"""Stand-ins for the services that rent machines to train on. Their machines run the trainer's image, on a CPU."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.google_cloud.loopback import Request, Response
from tests.google_cloud.metadata_server import MetadataServer
from tests.google_cloud.tpu import Tpu
from tests.google_cloud.vertex import Vertex

Start = Callable[..., subprocess.Popen]
"""Starts a program of the sandbox; see `sandbox.Tools.start`."""
NO_TPU = {"MACHINE_WITHOUT_TPU": "1"}
_IN_PROVISIONING = ("CREATING", "PROVISIONING")


class TpuWithHost(Tpu):
    """The TPU API, whose TPU has a host that runs the startup script and ends when the TPU is deleted.

    Args:
        start: Starts programs.
        metadata: The host's metadata server.
        folder: The host's files.
        options: See `ResourceLifecycles`.
    """

    def __init__(self, start: Start, metadata: MetadataServer, folder: Path, **options: Any):
        super().__init__(**options)
        self._start, self._metadata, self._folder = start, metadata, folder
        self._host: subprocess.Popen | None = None

    @property
    def exists(self) -> bool:
        """Whether a TPU exists that is not being deleted, or a host runs."""
        return self.resource_exists or self._host is not None

    def create(self, body: dict) -> None:
        self._lifecycles.append([*_IN_PROVISIONING, self._boot, "ACTIVE"])
        super().create(body)

    def serve(self, request: Request) -> Response:
        response = super().serve(request)
        if self._deleting and self._host is not None:
            self._start("docker", "rm", "--force", "tokenmill").wait()
            self._host.kill()
            self._host.wait()
            self._host = None
        return response

    def _boot(self, metadata: dict[str, str]) -> None:
        self._folder.mkdir(exist_ok=True)
        default_attributes = {
            "agent-worker-number": "0",
            "worker-network-endpoints": "unknown:unknown:127.0.0.1",
        }
        self._metadata.attributes = metadata | default_attributes
        script = self._folder / "startup-script"
        script.write_text(metadata["startup-script"])
        self._host = self._start("bash", str(script), TOKENMILL_FOLDER=str(self._folder), **NO_TPU)


class VertexWithMachine(Vertex):
    """Vertex AI, whose custom jobs run their container.

    Args:
        start: Starts programs.
        options: See `Vertex`.
    """

    def __init__(self, start: Start, **options: Any):
        super().__init__(**options)
        self._start = start
        self._containers: dict[str, subprocess.Popen] = {}

    def _create(self, body: dict) -> Response:
        response = super()._create(body)
        name = next(reversed(self.jobs))
        [pool] = body["jobSpec"]["workerPoolSpecs"]
        container = pool["containerSpec"]
        run = ["run", "--network", "host", "--name", _container_name(name), container["imageUri"]]
        self._containers[name] = self._start("docker", *run, *container["args"], **NO_TPU)
        return response

    def serve(self, request: Request) -> Response:
        response = super().serve(request)
        for name in set(self._containers) - set(self.active_jobs):
            self._start("docker", "rm", "--force", _container_name(name)).wait()
            self._containers.pop(name).wait()
        return response

    def _advance(self, name: str) -> None:
        if name in self.active_jobs:
            status = self._containers[name].poll()
            state = {None: "RUNNING", 0: "SUCCEEDED"}.get(status, "FAILED")
            self.jobs[name]["state"] = f"JOB_STATE_{state}"
            if state == "FAILED":
                self.jobs[name]["error"] = {"code": 3, "message": f"exit status {status}"}


def _container_name(job: str) -> str:
    return f"custom-job-{job.rpartition('/')[2]}"
