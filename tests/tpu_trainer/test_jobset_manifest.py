"""The manifest of a JobSet: the command of its containers, and the hosts that it requests."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tpu_trainer.launches import GKE, RUN, config
from tpu_trainer.cloud.jobset_manifest import manifest
from tpu_trainer.cloud.slices import Slice
from tpu_trainer.config import FitConfig
from tpu_trainer.support.errors import UsageError
from tpu_trainer.verbs.command_line import parse

TINI = '#!/bin/sh\nshift\nexec "$@"\n'
PYTHON = f'#!/bin/sh\nexec {sys.executable} -c "import json, sys; print(json.dumps(sys.argv[1:]))" "$@"\n'
_REFERENCE = re.compile(r"\$\$|\$\(([^)]*)\)")


def expanded(word: str, variables: dict[str, str]) -> str:
    """Expands $(NAME) as Kubernetes does: $$ is $, and unknown references stay."""
    return _REFERENCE.sub(
        lambda match: "$" if match[0] == "$$" else variables.get(match[1] or "", match[0]), word
    )


def executed(body: dict, folder: Path, *, slice_number: int, host: int) -> FitConfig:
    """Executes a container's command with stand-ins of tini and Python; returns the configuration that `fit` gets."""
    for name, text in (("tini", TINI), ("python", PYTHON)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    [container] = body["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"]
    annotations = {
        "batch.kubernetes.io/job-completion-index": str(host),
        "jobset.sigs.k8s.io/job-index": str(slice_number),
    }
    variables = {
        each["name"]: each["value"]
        if "value" in each
        else annotations[each["valueFrom"]["fieldRef"]["fieldPath"].split("'")[1]]
        for each in container["env"]
    }
    command = [expanded(word, variables) for word in container["command"] + container["args"]]
    environment = {"PATH": f"{folder}:{os.environ['PATH']}"} | variables
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    words = json.loads(result.stdout)
    assert words[:3] == ["-m", "tpu_trainer", "fit"]
    return parse(words[2:])[1]


def test_fit_accepts_the_command_of_every_host(tmp_path: Path) -> None:
    launch_options = [
        "--mesh.fsdp",
        "true",
        "--cloud.accelerator_type",
        "v6e-16",
        "--cloud.slices",
        "2",
    ]
    # Kubernetes would replace $(HOST), and turn $$ into $.
    tokenizer = "gs://bucket/$(HOST)/$$(HOST)/$HOME/`id`/'quoted\""
    launch_config = config(
        *GKE, *launch_options, "--data.tokenizer", tokenizer, "--mesh.rules", '{"a$": ["data"]}'
    )
    body = manifest(launch_config)
    numbers = []
    for slice_number, host in itertools.product(range(2), range(4)):
        fit = executed(body, tmp_path, slice_number=slice_number, host=host)
        assert (fit.output_dir, fit.strategy, fit.mesh.fsdp) == (RUN, "pjrt", True)
        assert (fit.data.tokenizer, fit.mesh.rules) == (tokenizer, {"a$": ["data"]})
        assert (fit.mesh.coordinator_address, fit.mesh.num_processes) == ("first-fit-0-0.first:8476", 8)
        assert fit.mesh.without_processes() == launch_config.mesh
        numbers.append(fit.mesh.process_id)
    assert numbers == list(range(8))


def pod_of(*args: str) -> dict:
    return manifest(config(*GKE, *args))["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]


@pytest.mark.parametrize(
    ("options", "selected", "tolerated"),
    [
        ((), {}, []),
        (("--cloud.spot", "true"), {"cloud.google.com/gke-spot": "true"}, ["gke-spot"]),
        (
            ("--cloud.reservation", "r"),
            {"cloud.google.com/reservation-name": "r", "cloud.google.com/reservation-affinity": "specific"},
            [],
        ),
        (("--cloud.flex_start", "true"), {"cloud.google.com/gke-flex-start": "true"}, ["gke-flex-start"]),
        (
            ("--cloud.flex_start", "true", "--cloud.queue", "q"),
            {"cloud.google.com/gke-flex-start": "true"},
            ["gke-flex-start", "gke-queued"],
        ),
    ],
)
def test_nodes_are_of_the_requested_kind(
    options: tuple[str, ...], selected: dict[str, str], tolerated: list[str]
) -> None:
    pod = pod_of(*options)
    tpu = {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": "2x4",
    }
    assert pod["nodeSelector"] == tpu | selected
    names = [each["key"].removeprefix("cloud.google.com/") for each in pod.get("tolerations", [])]
    assert names == tolerated


def test_containers_have_few_rights() -> None:
    pod = pod_of("--cloud.service_account", "trainer")
    assert (pod["serviceAccountName"], pod["automountServiceAccountToken"]) == ("trainer", False)
    security = pod["containers"][0]["securityContext"]
    assert security["capabilities"] == {"drop": ["ALL"], "add": ["SYS_RESOURCE"]}
    assert not security["allowPrivilegeEscalation"] and "privileged" not in security
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()


@pytest.mark.parametrize(
    ("accelerator_type", "topology", "hosts", "chips"),
    [
        ("v5litepod-1", "1x1", 1, 1),
        ("v5litepod-4", "2x2", 1, 4),
        ("v5litepod-8", "2x4", 1, 8),
        ("v5litepod-16", "4x4", 4, 4),
        ("v6e-256", "16x16", 64, 4),
        ("v4-8", "2x2x1", 1, 4),
        ("v4-64", "2x4x4", 8, 4),
        ("v4-1536", "8x8x12", 192, 4),
        ("v4-2048", "8x8x16", 256, 4),
        ("v5p-256", "4x4x8", 32, 4),
        ("v5p-12288", "16x16x24", 1536, 4),
        ("tpu7x-8", "2x2x1", 1, 4),
        ("tpu7x-128", "4x4x4", 16, 4),
    ],
)
def test_slices_are_those_of_googles_tables(
    accelerator_type: str, topology: str, hosts: int, chips: int
) -> None:
    parsed = Slice.parse(accelerator_type)
    assert (parsed.topology, parsed.hosts, parsed.chips_per_host) == (topology, hosts, chips)


def test_another_topology_of_the_same_size_can_be_chosen() -> None:
    assert Slice.parse("v4-512", "4x4x16").hosts == Slice.parse("v4-512").hosts == 64
    with pytest.raises(UsageError, match="its topologies are 4x8x8, 4x4x16"):
        Slice.parse("v4-512", "8x8x8")


@pytest.mark.parametrize(
    "accelerator_type", ["v3-8", "v5e-8", "v5litepod", "v4-0", "v4-", "tpu7x-7", "v6e-512"]
)
def test_slices_that_do_not_exist_are_errors(accelerator_type: str) -> None:
    with pytest.raises(UsageError, match=f"--cloud.accelerator_type is '{accelerator_type}'"):
        Slice.parse(accelerator_type)
