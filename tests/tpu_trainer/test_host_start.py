"""The script that each host of a TPU runs at its start, with stand-ins for curl and docker that record calls."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

import tpu_trainer.cloud
from tpu_trainer.verbs.command_line import parse

SCRIPT = Path(tpu_trainer.cloud.__file__).with_name("host_start.sh")
IMAGE = "europe-west4-docker.pkg.dev/p/t/trainer@sha256:0"
METADATA = {
    "attributes/tokenmill-report": "gs://bucket/runs/first/launch/1a2b.txt",
    "attributes/tokenmill-image": IMAGE,
    "attributes/tokenmill-name": "first",
    "attributes/tokenmill-strategy": "tpu",
    "attributes/tokenmill-config": "seed: 3\n",
    "attributes/worker-network-endpoints": "unknown:unknown:10.0.0.2",
    "attributes/agent-worker-number": "0",
    "service-accounts/default/token": '{"access_token":"ya29.t-_","expires_in":3599,"token_type":"Bearer"}',
}
CURL = """#!/usr/bin/env python3
import json, os, sys
from pathlib import Path
url = sys.argv[-1]
place = "http://metadata.google.internal/computeMetadata/v1/instance/"
if url.startswith(place):
    assert "Metadata-Flavor: Google" in sys.argv
    found = json.loads(Path(os.environ["METADATA"]).read_text())
    sys.stdout.write(found.get(url.removeprefix(place)) or sys.exit(f"curl: (22) 404: {url}"))
else:
    body = Path(next(word for word in sys.argv if word.startswith("@"))[1:]).read_text()
    with open(os.environ["CALLS"], "a") as file:
        file.write(json.dumps(["upload", url, "Authorization: Bearer ya29.t-_" in sys.argv, body]) + "\\n")
"""
DOCKER = """#!/usr/bin/env python3
import json, os, sys
with open(os.environ["CALLS"], "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
if sys.argv[1] == "login":
    assert sys.stdin.read().strip() == "ya29.t-_"
if sys.argv[1] == "run" and "CANNOT_RUN" in os.environ:
    print("docker: Error response from daemon: no such device: /dev/accel0", file=sys.stderr)
elif sys.argv[1] == "run":
    print("step 1/1")
if sys.argv[1] == "pull" and "STATUS_OF_PULL" in os.environ:
    print("Error response from daemon: no space left on device", file=sys.stderr)
sys.exit(int(os.environ.get("STATUS_OF_" + sys.argv[1].upper(), 0)))
"""


@dataclass(frozen=True)
class Host:
    """The effects of a start: the script's exit status, the calls of docker, and the uploads."""

    status: int
    calls: list[list[str]]
    uploads: list[list]
    config: str

    @property
    def docker_run(self) -> list[str] | None:
        """The arguments of `docker run`."""
        return next((call for call in self.calls if call[0] == "run"), None)


def start(folder: Path, metadata: dict[str, str], **environment: str) -> Host:
    tools, calls = folder / "tools", folder / "calls"
    tools.mkdir()
    for name, text in (("curl", CURL), ("docker", DOCKER), ("sleep", "#!/bin/sh\n")):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    (folder / "metadata.json").write_text(json.dumps(METADATA | metadata))
    values = {"METADATA": folder / "metadata.json", "CALLS": calls, "TOKENMILL_FOLDER": folder / "tokenmill"}
    path = {"PATH": f"{tools}:{os.environ['PATH']}"}
    result = subprocess.run(
        ["bash", SCRIPT],
        env={**os.environ, **path, **{name: str(value) for name, value in values.items()}, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    recorded_calls = [json.loads(line) for line in calls.read_text().splitlines()]
    return Host(
        status=result.returncode,
        calls=[call for call in recorded_calls if call[0] != "upload"],
        uploads=[call[1:] for call in recorded_calls if call[0] == "upload"],
        config=(folder / "tokenmill" / "fit.yaml").read_text(),
    )


@pytest.mark.parametrize("status", [0, 2, 75])
def test_one_host_trains_and_reports_how_it_ended(tmp_path: Path, status: int) -> None:
    host = start(tmp_path, {}, STATUS_OF_RUN=str(status))
    assert host.status == 0
    run = host.docker_run
    assert run[run.index(IMAGE) :] == [IMAGE, "fit", "--config", "/config.yaml"]
    assert f"{tmp_path}/tokenmill/fit.yaml:/config.yaml:ro" in run and host.config == "seed: 3\n"
    place = "https://storage.googleapis.com/upload/storage/v1/b/bucket/o?uploadType=media"
    assert host.uploads == [[f"{place}&name=runs%2Ffirst%2Flaunch%2F1a2b.txt", True, f"{status}\nstep 1/1\n"]]


@pytest.mark.parametrize("status", [125, 127])
def test_a_container_that_docker_cannot_run_is_reported_with_dockers_message(
    tmp_path: Path, status: int
) -> None:
    host = start(tmp_path, {}, STATUS_OF_RUN=str(status), CANNOT_RUN="1")
    message = "docker: Error response from daemon: no such device: /dev/accel0\n"
    assert [upload[2] for upload in host.uploads] == [f"{status}\n{message}"]


@pytest.mark.parametrize("endpoints", ["a:b:10.0.0.2,a:b:10.0.0.3", "10.0.0.2,10.0.0.3"])
@pytest.mark.parametrize("number", [0, 1])
def test_every_host_of_a_slice_trains(tmp_path: Path, number: int, endpoints: str) -> None:
    metadata = {"worker-network-endpoints": endpoints, "agent-worker-number": str(number)}
    metadata |= {"tokenmill-strategy": "pjrt"}
    host = start(
        tmp_path, {f"attributes/{name}": value for name, value in metadata.items()}, STATUS_OF_RUN="75"
    )
    run = host.docker_run
    command = run[run.index(IMAGE) + 1 :]
    assert command == [
        *("fit", "--config", "/config.yaml", "--mesh.num_processes", "2"),
        *("--mesh.coordinator_address", "10.0.0.2:8476", "--mesh.process_id", str(number)),
    ]
    name = "1a2b-1.txt" if number else "1a2b.txt"
    assert [(upload[0].rpartition("%2F")[2], upload[2]) for upload in host.uploads] == [
        (name, "75\nstep 1/1\n")
    ]
    path = tmp_path / "fit.yaml"
    path.write_text("output_dir: run\ndata: {train: d}\nstrategy: pjrt\n")
    mesh = parse([*command[:2], str(path), *command[3:]])[1].mesh
    assert (mesh.num_processes, mesh.process_id, mesh.coordinator_address) == (2, number, "10.0.0.2:8476")


@pytest.mark.parametrize("number", [0, 1])
def test_a_host_of_compute_engine_knows_how_many_there_are(tmp_path: Path, number: int) -> None:
    metadata = {"worker-network-endpoints": "10.0.0.2,10.0.0.3", "agent-worker-number": str(number)}
    metadata |= {"tokenmill-strategy": "pjrt", "tokenmill-hosts": "2"}
    run = start(tmp_path, {f"attributes/{name}": value for name, value in metadata.items()}).docker_run
    assert run[-2:] == ["--mesh.process_id", str(number)] and "10.0.0.2:8476" in run


def test_a_single_host_of_compute_engine_needs_no_addresses(tmp_path: Path) -> None:
    metadata = {"worker-network-endpoints": "", "agent-worker-number": "", "tokenmill-strategy": "pjrt"}
    metadata["tokenmill-hosts"] = "1"
    run = start(tmp_path, {f"attributes/{name}": value for name, value in metadata.items()}).docker_run
    assert run[-2:] == ["--mesh.num_processes", "1"]


def test_a_host_that_is_not_told_of_the_others_reports_it(tmp_path: Path) -> None:
    metadata = {"attributes/worker-network-endpoints": "10.0.0.2", "attributes/tokenmill-hosts": "4"}
    host = start(tmp_path, metadata, TOKENMILL_CHECKS="2")
    assert host.docker_run is None
    assert "worker-network-endpoints is 10.0.0.2: must name 4 hosts" in host.uploads[0][2]


def test_with_pjrt_one_host_trains_alone(tmp_path: Path) -> None:
    run = start(tmp_path, {"attributes/tokenmill-strategy": "pjrt"}).docker_run
    assert run[run.index(IMAGE) + 1 :] == ["fit", "--config", "/config.yaml", "--mesh.num_processes", "1"]


@pytest.mark.parametrize("number", [0, 1])
def test_an_image_that_cannot_be_pulled_is_reported(tmp_path: Path, number: int) -> None:
    host = start(tmp_path, {"attributes/agent-worker-number": str(number)}, STATUS_OF_PULL="1")
    assert host.status != 0
    assert [call[0] for call in host.calls].count("pull") == 5
    assert host.docker_run is None
    [report] = [upload[2] for upload in host.uploads]
    assert report.startswith("1\n") and "no space left on device" in report


def test_a_host_that_is_told_too_little_reports_it(tmp_path: Path) -> None:
    host = start(tmp_path, {"attributes/worker-network-endpoints": ""})
    assert host.status != 0
    assert host.docker_run is None
    [report] = [upload[2] for upload in host.uploads]
    assert report.startswith("1\n") and "404: http://metadata.google.internal" in report
