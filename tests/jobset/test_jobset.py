"""JobSets of `launch`, checked by the types, schema and rules of JobSet and Kubernetes: `make test-jobset`."""

from __future__ import annotations

import itertools
import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.tpu_trainer.launches import GKE, config
from tpu_trainer.cloud.jobset_manifest import manifest
from tpu_trainer.cloud.slices import Slice

ENGINES = Path(__file__).resolve().parents[2] / ".engines"
SIZES = (
    "v5litepod-1",
    "v5litepod-8",
    "v5litepod-256",
    "v6e-16",
    "v4-64",
    "v5p-12288",
    "tpu7x-8",
    "tpu7x-512",
)
KINDS: tuple[tuple[str, ...], ...] = (
    (),
    ("--cloud.spot", "true"),
    ("--cloud.reservation", "r"),
    ("--cloud.flex_start", "true"),
    ("--cloud.flex_start", "true", "--cloud.queue", "team.a"),
)


def validated(bodies: Sequence[dict]) -> list[str]:
    """Returns "valid" or the errors of each JobSet."""
    result = subprocess.run(
        [ENGINES / "validate-jobset", ENGINES / "jobsets.yaml"],
        input="".join(map(json.dumps, bodies)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def test_every_slice_on_every_kind_of_node_is_valid() -> None:
    bodies = []
    for size, kind, slices in itertools.product(SIZES, KINDS, ("1", "3")):
        if slices != "1" and Slice.parse(size).hosts == 1:
            continue
        slice_options = (
            "--cloud.accelerator_type",
            size,
            "--cloud.slices",
            slices,
            "--cloud.service_account",
            "trainer.a",
        )
        bodies.append(manifest(config(*GKE, *slice_options, *kind, "--cloud.labels.commit", "1a2b")))
    assert validated(bodies) == ["valid"] * len(bodies)


def test_the_longest_name_that_launch_accepts_is_valid_and_a_longer_one_is_not() -> None:
    body = manifest(config(*GKE, "--cloud.name", "a" * 49))
    longer_body = json.loads(json.dumps(body))
    longer_body["metadata"]["name"] += "a"
    valid, error = validated([body, longer_body])
    assert valid == "valid" and "will exceed 63 characters" in error


def set_value_at(*path: Any) -> Callable[[dict, Any], None]:
    """Returns a function that sets a value of a JobSet."""

    def change(body: dict, value: Any) -> None:
        for key in path[:-1]:
            body = body[key]
        body[path[-1]] = value

    return change


JOB = ("spec", "replicatedJobs", 0, "template", "spec")
POD = (*JOB, "template", "spec")


@pytest.mark.parametrize(
    ("change", "value", "message"),
    [
        (set_value_at("spec", "replicas"), 2, 'unknown field "replicas"'),
        (set_value_at("spec", "failurePolicy", "rules", 0, "action"), "Fail", "Unsupported value"),
        (set_value_at("spec", "failurePolicy", "rules", 0, "onJobFailureReasons"), ["Gone"], "Gone"),
        (set_value_at("spec", "failurePolicy", "restartStrategy"), "Never", "Unsupported value"),
        (set_value_at(*JOB, "podFailurePolicy", "rules", 1, "onExitCodes", "values"), [143, 75], "ordered"),
        (
            set_value_at(*JOB, "podFailurePolicy", "rules", 1, "onExitCodes", "containerName"),
            "x",
            "containerName",
        ),
        (set_value_at(*POD, "restartPolicy"), "OnFailure", "restartPolicy"),
        (set_value_at(*POD, "containers", 0, "resources", "limits"), {"google.com/tpu": "x"}, "quantit"),
        (set_value_at(*POD, "nodeSelector", "cloud.google.com/gke-tpu-topology"), "2 x 4", "nodeSelector"),
        (set_value_at(*POD, "tolerations"), [{"key": "k", "operator": "Is"}], "tolerations"),
    ],
)
def test_the_rules_find_mistakes(change: Callable[[dict, Any], None], value: Any, message: str) -> None:
    body = manifest(config(*GKE))
    change(body, value)
    [error] = validated([body])
    assert message in error
