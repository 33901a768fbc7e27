"""Launches on Compute Engine, from the instance template to deleting it, against a stand-in."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from tests.google_cloud.compute import Compute
from tests.google_cloud.gcs import Gcs
from tests.google_cloud.loopback import Loopback, Request, Response
from tests.tpu_trainer.launches import COMPUTE, DELETE_GROUP, RUN, config
from tpu_trainer.cloud.compute_requests import bodies
from tpu_trainer.support.errors import CloudError, InterruptedRun, UsageError

ONE_HOST = ("--cloud.accelerator_type", "tpu7x-8")
KINDS = {"template": "instanceTemplates", "policy": "resourcePolicies", "group": "instanceGroupManagers"}


@pytest.fixture
def train(train: Callable[..., list[str]]) -> Callable[..., list[str]]:
    """Launches on Compute Engine against a stand-in; returns the lines of stderr."""

    def run(stand_in: Loopback, *extra_options: str, **options: Any) -> list[str]:
        return train(stand_in, *COMPUTE, *extra_options, **options)

    return run


def create_parts(
    compute: Compute, *options: str, attempt: str = "1234abcd", parts: tuple[str, ...] = tuple(KINDS)
) -> None:
    """Creates what a launch with these options creates."""
    for part, body in bodies(config(*COMPUTE, *options), attempt).items():
        if part in parts:
            compute.put(KINDS[part], body)


def test_a_slice_is_created_trains_and_is_deleted(gcs: Gcs, train: Any, host_exit: Any) -> None:
    line = b'{"step": 50, "loss": 3.25}\n{"step": 1'
    creating, out_of_capacity = (None, "CREATING", None), (None, "CREATING", "ZONE_RESOURCE_POOL_EXHAUSTED")
    running = ("RUNNING", "NONE", None)
    lifecycle = [[creating] * 4, [running, out_of_capacity, out_of_capacity, creating], "RUNNING"]
    lifecycle += [lambda _: gcs.put(f"{RUN}/metrics.jsonl", line), "RUNNING", host_exit(0), "RUNNING"]
    compute = Compute(lifecycle)
    assert train(compute) == [
        "launch: first: requesting a v6e-16 in europe-west4-b; if this command is killed, the training goes on; delete "
        f"it with: {DELETE_GROUP}",
        "launch: first: 0 of 4 hosts are running",
        "launch: first: 1 of 4 hosts are running: ZONE_RESOURCE_POOL_EXHAUSTED: because of "
        "ZONE_RESOURCE_POOL_EXHAUSTED",
        "launch: first: the TPU is active",
        "launch: step 50: loss 3.250",
        "launch: first: finished: gs://bucket/runs/first",
    ]
    assert compute.parts == {} and compute.created[0]["targetSize"] == 4


def test_one_host_needs_no_policy(train: Any, host_exit: Any) -> None:
    compute = Compute(["RUNNING", host_exit(0), "RUNNING"])
    assert "resource-policies" not in train(compute, *ONE_HOST)[0]
    assert "resourcePolicies" not in compute.created[0] and compute.parts == {}


@pytest.mark.parametrize(
    "state",
    [
        [("RUNNING", "NONE", None)] * 3 + [("STOPPING", "NONE", None)],
        "TERMINATED",
        [("RUNNING", "NONE", None)] * 3 + [(None, "DELETING", None)],
        [],
        [("RUNNING", "NONE", None)] * 3,
    ],
)
def test_a_slice_that_is_taken_away_is_replaced_as_a_whole(state: Any, train: Any, host_exit: Any) -> None:
    compute = Compute(["RUNNING", state], ["STAGING", "RUNNING", host_exit(0), "RUNNING"])
    lines = train(compute, "--cloud.spot", "true")
    assert lines.count("launch: first: the TPU was preempted; the run continues on a new one") == 1
    assert lines[-1] == "launch: first: finished: gs://bucket/runs/first"
    assert compute.parts == {} and len(compute.created) == 2


@pytest.mark.parametrize("kind", KINDS.values())
def test_an_operation_that_fails_leaves_nothing(kind: str, train: Any, capsys: Any) -> None:
    compute = Compute()
    compute.failures[kind] = ["QUOTA_EXCEEDED"]
    with pytest.raises(CloudError, match="first: the request for a TPU failed: QUOTA_EXCEEDED: because of"):
        train(compute)
    assert compute.parts == {} and "may remain" not in capsys.readouterr().err


def test_a_lack_of_capacity_and_slow_operations_are_waited_for(train: Any, host_exit: Any) -> None:
    compute = Compute(["RUNNING", host_exit(0), "RUNNING"])
    compute.failures["instanceGroupManagers"] = ["ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"]
    compute.polls_to_finish = 40
    assert train(compute)[-1] == "launch: first: finished: gs://bucket/runs/first"
    assert compute.parts == {} and len(compute.created) == 1


def test_hosts_without_quota_end_the_launch(train: Any) -> None:
    compute = Compute([[(None, "CREATING", "QUOTA_EXCEEDED")] * 4])
    with pytest.raises(CloudError, match="the request for a TPU failed: QUOTA_EXCEEDED: because of"):
        train(compute)
    assert compute.parts == {}


def test_a_group_that_waits_for_all_hosts_at_once_is_waited_for(train: Any, host_exit: Any) -> None:
    compute = Compute([[]] * 20 + ["RUNNING", host_exit(0), "RUNNING"])
    error = {"errors": [{"code": "ZONE_RESOURCE_POOL_EXHAUSTED", "message": "later"}]}
    progress = {"inProgress": True, "lastProgressCheck": {"error": error}}
    compute.status = {"isStable": False, "bulkInstanceOperation": progress}
    lines = train(compute, "--cloud.flex_start", "true")
    assert "launch: first: 0 of 4 hosts are running: ZONE_RESOURCE_POOL_EXHAUSTED: later" in lines
    assert len(compute.created) == 1


def test_too_many_requests_in_a_short_time_are_repeated(train: Any, host_exit: Any) -> None:
    class Limited(Compute):
        refusals = 5

        def serve(self, request: Request) -> Response:
            if "listManagedInstances" in request.path and self.refusals:
                self.refusals -= 1
                error = {"message": "Rate Limit Exceeded", "errors": [{"reason": "rateLimitExceeded"}]}
                return Response.of_json({"error": error}, 403)
            return super().serve(request)

    lines = train(Limited(["RUNNING", host_exit(0), "RUNNING"]))
    assert any("retrying: 403 POST" in line and "Rate Limit Exceeded" in line for line in lines)
    assert lines[-1] == "launch: first: finished: gs://bucket/runs/first"


@pytest.mark.parametrize("part", KINDS)
@pytest.mark.parametrize(
    ("their_options", "message"),
    [
        (
            ("--output_dir", "gs://bucket/other/first"),
            "exists, but not for gs://bucket/runs/first; choose another",
        ),
        (
            ("--train.steps", "7"),
            "exists, but with other options.* delete it: gcloud compute instance-groups",
        ),
        (("--cloud.topology", "4x4", "--cloud.spot", "true"), "with other options"),
    ],
)
def test_what_belongs_to_another_run_is_neither_used_nor_deleted(
    part: str, their_options: tuple[str, ...], message: str, train: Any
) -> None:
    compute = Compute(["RUNNING"])
    create_parts(compute, *their_options, parts=(part,))
    before = dict(compute.parts)
    with pytest.raises(CloudError, match=message):
        train(compute)
    assert compute.parts == before


def test_what_somebody_else_creates_meanwhile_is_left_alone(train: Any) -> None:
    class Racing(Compute):
        def _insert(self, kind: str, body: dict, request_id: str) -> Any:
            if kind == "resourcePolicies":
                self.put(kind, {"name": "first"})
            return super()._insert(kind, body, request_id)

    compute = Racing()
    with pytest.raises(CloudError, match="exists, but not for"):
        train(compute)
    assert ("resourcePolicies", "first") in compute.parts and compute.created == []


def test_a_signal_waits_for_a_group_that_is_not_visible_yet(train: Any, capsys: Any) -> None:
    class Slow(Compute):
        hidden_answers = 0

        def _insert(self, kind: str, body: dict, request_id: str) -> Response:
            if kind == "instanceGroupManagers":
                os.kill(os.getpid(), signal.SIGTERM)
                self.hidden_answers = 3
            return super()._insert(kind, body, request_id)

        def _show(self, kind: str, name: str) -> Response:
            if kind == "instanceGroupManagers" and self.hidden_answers:
                self.hidden_answers -= 1
                return Response.error(404, "not yet")
            return super()._show(kind, name)

        def _delete(self, kind: str, name: str) -> Response:
            assert kind == "instanceGroupManagers" or ("instanceGroupManagers", "first") not in self.parts
            return super()._delete(kind, name)

    compute = Slow(["STAGING"], polls_to_finish=4)
    with pytest.raises(InterruptedRun):
        train(compute)
    assert compute.parts == {} and "may remain" not in capsys.readouterr().err


@pytest.mark.parametrize("fault", ["in use", "failed operation"])
@pytest.mark.parametrize("status", [0, 1])
def test_a_part_that_cannot_be_deleted_ends_the_command_and_does_not_hide_a_failure(
    fault: str, status: int, train: Any, host_exit: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    compute = Compute(["RUNNING", host_exit(status, log="the loss is NaN"), "RUNNING"])
    if fault == "in use":
        compute.used_by_others.add(("instanceTemplates", "first"))
    else:
        compute.failed_deletions["instanceTemplates"] = "PERMISSIONS_ERROR"
    message = {0: "cannot be deleted: .*(being used by|PERMISSIONS_ERROR)", 1: "the loss is NaN"}[status]
    with pytest.raises(CloudError, match=f"(?s){message}"):
        train(compute)
    assert list(compute.parts) == [("instanceTemplates", "first")]
    stderr = capsys.readouterr().err
    assert "resources may remain" in stderr and "gcloud compute instance-templates delete first" in stderr
    assert ("cannot be deleted" in stderr) == (status == 1)


@pytest.mark.parametrize("report", [b"", b"no number\nat all"])
def test_a_report_without_a_status_is_a_failure(report: bytes, gcs: Gcs, train: Any) -> None:
    compute = Compute(["RUNNING", lambda metadata: gcs.put(metadata["tokenmill-report"], report), "RUNNING"])
    with pytest.raises(CloudError, match="does not begin with an exit status"):
        train(compute)
    assert compute.parts == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--cloud.accelerator_type", "v5litepod-8"), "Compute Engine has TPUs v5p, v6e and tpu7x"),
        (
            ("--cloud.spot", "true", "--cloud.flex_start", "true"),
            "--cloud.spot and --cloud.flex_start: hosts",
        ),
        (("--cloud.boot_image", "ubuntu"), "must be projects/P/global/images/family/F"),
        (("--cloud.cluster", "c"), "is an option of --cloud.service gke"),
        (("--cloud.network", "projects/p/global/networks/n"), "--cloud.network is .* must be a name"),
        (("--strategy", "tpu"), "--cloud.service compute trains with --strategy pjrt"),
        (
            ("--cloud.service", "tpu", "--cloud.flex_start", "true"),
            "an option of --cloud.service compute and gke",
        ),
    ],
)
def test_options_are_checked_before_any_request(options: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        config(*COMPUTE, *options)
