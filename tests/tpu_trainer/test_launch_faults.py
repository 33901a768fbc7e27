"""Launches with lost responses, signals and kills: at most one TPU trains, and none is left without a warning."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.auth.exceptions import RefreshError
from google.auth.transport.requests import AuthorizedSession

from tests.google_cloud.compute import Compute
from tests.google_cloud.gcs import Gcs
from tests.google_cloud.gke import Gke
from tests.google_cloud.loopback import Loopback, Request, Response
from tests.google_cloud.tpu import Tpu
from tests.google_cloud.vertex import Vertex
from tests.tpu_trainer.launches import (
    COMPUTE,
    DELETE,
    DELETE_GROUP,
    DELETE_JOBSET,
    GKE,
    IMAGE,
    LEASE,
    NEEDED,
    RUN,
    config,
    host_exit,
    run_launch,
    signals_once,
)
from tpu_trainer.cloud.jobset_manifest import manifest
from tpu_trainer.cloud.service import conflict_of, recorded_options
from tpu_trainer.cloud.tpu_vms import TpuVms
from tpu_trainer.support.errors import CloudError, InterruptedRun

SERVICES = ("tpu", "compute", "gke", "vertex")
Fault = Callable[[Callable[[Request], Response], Request], Response]


def stand_in_for(service: str, gcs: Gcs) -> Loopback:
    """Returns a TPU or a job that trains successfully."""
    if service == "vertex":
        return Vertex("JOB_STATE_RUNNING", "JOB_STATE_RUNNING", "JOB_STATE_SUCCEEDED")
    if service == "gke":
        return Gke(["Pending", "Running", "Completed"], ["Completed"])
    if service == "compute":
        lifecycle = [host_exit(gcs, 0), "RUNNING"]
        return Compute(lifecycle, lifecycle, polls_to_finish=0)
    lifecycle = ["WAITING_FOR_RESOURCES", "ACTIVE", host_exit(gcs, 0), "ACTIVE"]
    return Tpu(lifecycle, lifecycle)


def options(service: str) -> tuple[str, ...]:
    return {"gke": GKE, "compute": COMPUTE}.get(service) or ("--cloud.service", service)


def is_creation(request: Request) -> bool:
    """Whether a request creates a resource."""
    return request.method == "POST" and not request.path.endswith(
        ("selfsubjectaccessreviews", "listManagedInstances")
    )


def created_count(stand_in: Loopback) -> int:
    return len(stand_in.jobs if isinstance(stand_in, Vertex) else stand_in.created)


def resource_exists(stand_in: Loopback) -> bool:
    """Returns whether a resource exists that is not being deleted."""
    if isinstance(stand_in, Vertex):
        return bool(stand_in.active_jobs)
    return stand_in.resource_exists


def serve_faults(
    stand_ins: list[Loopback], fault: Fault, is_selected: Callable[[int, Request], bool]
) -> None:
    """Lets `fault` serve the requests that `is_selected` selects by their number, counted over all stand-ins from 0."""
    count = itertools.count()
    for stand_in in stand_ins:

        def serve(request: Request, original: Callable[[Request], Response] = stand_in.serve) -> Response:
            return fault(original, request) if is_selected(next(count), request) else original(request)

        stand_in.serve = serve


def requests_of(service: str) -> int:
    """Returns the number of requests of a launch without faults."""
    requests: list[Request] = []
    with Gcs("bucket") as gcs, stand_in_for(service, gcs) as stand_in:
        serve_faults(
            [stand_in, gcs],
            lambda serve, request: serve(request),
            lambda _, request: not requests.append(request),
        )
        run_launch(stand_in, gcs, *options(service))
    return len(requests)


def answer_lost(serve: Callable[[Request], Response], request: Request) -> Response:
    serve(request)
    raise ConnectionResetError


def failed_before(serve: Callable[[Request], Response], request: Request) -> Response:
    return Response.error(503, "come again")


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize(
    ("fault", "length"),
    [(answer_lost, 1), (failed_before, 3)],
)
def test_a_lost_answer_to_any_request_changes_nothing(service: str, fault: Fault, length: int) -> None:
    for first in range(requests_of(service)):
        with Gcs("bucket") as gcs, stand_in_for(service, gcs) as stand_in:
            faulty = range(first, first + length)
            serve_faults([stand_in, gcs], fault, lambda number, _, faulty=faulty: number in faulty)
            try:
                run_launch(stand_in, gcs, *options(service))
            except CloudError:
                # It gives up only before it has requested anything.
                assert created_count(stand_in) == 0, f"request {first}"
                continue
            assert not resource_exists(stand_in), f"request {first}"
            if isinstance(stand_in, Vertex):
                states = sorted(job["state"] for job in stand_in.jobs.values())
                assert states == ["JOB_STATE_SUCCEEDED"], f"request {first}"
            else:
                assert created_count(stand_in) == 1, f"request {first}"


def test_a_job_made_by_a_request_that_seemed_lost_is_cancelled(gcs: Gcs) -> None:
    """The request is executed after the status check that follows its lost response."""
    late_requests: list[Callable[[], Response]] = []

    def delayed(serve: Callable[[Request], Response], request: Request) -> Response:
        late_requests.append(lambda: serve(request))
        raise ConnectionResetError

    with stand_in_for("vertex", gcs) as stand_in:
        posts = itertools.count()
        serve_faults([stand_in], delayed, lambda _, request: request.method == "POST" and next(posts) == 0)
        wait_count = itertools.count()
        run_launch(
            stand_in,
            gcs,
            *options("vertex"),
            sleep=lambda _: late_requests.pop()() if next(wait_count) == 2 else None,
        )
        states = sorted(job["state"] for job in stand_in.jobs.values())
    assert states == ["JOB_STATE_CANCELLED", "JOB_STATE_SUCCEEDED"]


@pytest.mark.parametrize("service", SERVICES)
def test_a_signal_at_any_request_leaves_nothing(service: str, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(requests_of(service)):
        with Gcs("bucket") as gcs, stand_in_for(service, gcs) as stand_in:

            def send_signal(serve: Callable[[Request], Response], request: Request) -> Response:
                os.kill(os.getpid(), signal.SIGTERM)
                return serve(request)

            serve_faults([stand_in, gcs], send_signal, lambda count, _, number=number: count == number)
            with pytest.raises(InterruptedRun, match="run the same command to continue"):
                run_launch(stand_in, gcs, *options(service))
            assert not resource_exists(stand_in), f"request {number}"


@pytest.mark.parametrize("service", SERVICES)
def test_a_signal_during_a_request_whose_resource_is_not_visible_yet_leaves_nothing(
    service: str, gcs: Gcs, capsys: pytest.CaptureFixture[str]
) -> None:
    part = {"compute": "instanceGroupManagers", "gke": "jobsets", "tpu": "queuedResources"}.get(
        service, "customJobs"
    )
    hidden_answers: list[None] = []

    def invisible(serve: Callable[[Request], Response], request: Request) -> Response:
        response = serve(request)
        if is_creation(request):
            hidden_answers.append(None)
            os.kill(os.getpid(), signal.SIGTERM)
        elif request.method == "GET" and hidden_answers:
            hidden_answers.pop()
            return Response.of_json({}) if service == "vertex" else Response.error(404, "not yet")
        return response

    with stand_in_for(service, gcs) as stand_in:
        # A list of custom jobs may lack a new one; a request for the job itself does not.
        serve_faults(
            [stand_in],
            invisible,
            lambda _, request: part in request.path.split("/")[-2 + (service == "vertex") :],
        )
        with pytest.raises(InterruptedRun):
            run_launch(stand_in, gcs, *options(service))
        assert not hidden_answers and not resource_exists(stand_in)
    assert "may remain" not in capsys.readouterr().err


@pytest.mark.parametrize("service", SERVICES)
def test_a_signal_after_a_request_without_an_answer_says_what_may_be_left(
    service: str, gcs: Gcs, capsys: pytest.CaptureFixture[str]
) -> None:
    with stand_in_for(service, gcs) as stand_in:
        serve_faults([stand_in], failed_before, lambda _, request: is_creation(request))
        with pytest.raises(InterruptedRun):
            run_launch(stand_in, gcs, *options(service), sleep=signals_once(signal.SIGTERM))
    lines = capsys.readouterr().err
    command = {
        "tpu": DELETE,
        "compute": DELETE_GROUP,
        "gke": DELETE_JOBSET,
        "vertex": "gcloud ai custom-jobs cancel JOB_ID --project p --region europe-west4",
    }[service]
    assert (
        "may remain on Google Cloud and be billed; run the same command to monitor them again, or delete"
        in lines
    )
    assert lines.rstrip().endswith(command)


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("executed", [True, False])
def test_a_refusal_after_a_request_without_an_answer_leaves_nothing_that_appears(
    service: str, executed: bool, gcs: Gcs, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first request for a TPU or job gets no answer, and may be executed after the second one is refused."""
    part = {"compute": "instanceGroupManagers", "gke": "jobsets", "tpu": "queuedResources"}.get(
        service, "customJobs"
    )
    late_requests: list[Callable[[], Response]] = []
    refusals: list[Request] = []

    def serve(original: Callable[[Request], Response], request: Request) -> Response:
        if not late_requests:
            late_requests.append(lambda: original(request))
            raise ConnectionResetError
        refusals.append(request)
        return Response.error(403, "quota exceeded")

    with stand_in_for(service, gcs) as stand_in:
        serve_faults(
            [stand_in], serve, lambda _, request: is_creation(request) and request.path.endswith(part)
        )
        with pytest.raises(CloudError, match="quota exceeded"):
            run_launch(
                stand_in,
                gcs,
                *options(service),
                sleep=lambda _: (
                    late_requests[0]() if executed and len(refusals) == 1 and not refusals.clear() else None
                ),
            )
        assert not resource_exists(stand_in) and created_count(stand_in) == (
            executed and service != "compute"
        )
    # Without the template and the policy, which are deleted, Compute Engine does not create the group.
    assert ("may remain" in capsys.readouterr().err) == (not executed and service != "compute")


def test_a_refusal_to_delete_does_not_hide_the_one_to_create(
    gcs: Gcs, capsys: pytest.CaptureFixture[str]
) -> None:
    def serve(original: Callable[[Request], Response], request: Request) -> Response:
        return Response.error(403, "quota exceeded" if request.method == "POST" else "may not delete")

    with stand_in_for("compute", gcs) as stand_in:
        serve_faults(
            [stand_in],
            serve,
            lambda _, request: request.method == "DELETE" or request.path.endswith("instanceGroupManagers"),
        )
        with pytest.raises(CloudError, match="quota exceeded"):
            run_launch(stand_in, gcs, *options("compute"))
        assert resource_exists(stand_in)
    stderr = capsys.readouterr().err
    assert "may not delete" in stderr and stderr.rstrip().endswith(DELETE_GROUP)


LAUNCH = """
import sys
from tests.tpu_trainer.launches import google
from tpu_trainer.verbs.command_line import parse
from tokenmill_reader.console.logs import log_to_stderr
from tpu_trainer.verbs.launch import launch
log_to_stderr("tpu_trainer")
url, storage, *arguments = sys.argv[1:]
launch(parse(arguments)[1], google(url, storage), sleep=lambda seconds: None)
"""


class Died(BaseException):
    """Represents the end of the launching machine."""


@pytest.mark.parametrize("service", SERVICES)
def test_a_launch_that_dies_after_any_request_is_continued_by_the_next(service: str) -> None:
    for last_request in range(requests_of(service)):
        with Gcs("bucket") as gcs, stand_in_for(service, gcs) as stand_in:
            deaths: list[int] = []

            def cut_off(
                serve: Callable[[Request], Response], request: Request, deaths: list[int] = deaths
            ) -> Response:
                if not deaths:
                    serve(request)
                    deaths.append(created_count(stand_in))
                raise ConnectionResetError

            def wait(seconds: float, deaths: list[int] = deaths) -> None:
                if deaths:
                    raise Died

            originals = stand_in.serve, gcs.serve
            serve_faults(
                [stand_in, gcs], cut_off, lambda number, _, last_request=last_request: number >= last_request
            )
            with pytest.raises((Died, InterruptedRun) if last_request else (Died, CloudError)):
                run_launch(stand_in, gcs, *options(service), sleep=wait)
            stand_in.serve, gcs.serve = originals
            run_launch(stand_in, gcs, *options(service))
            # If the resource was being deleted, a new one finds that the run is finished.
            assert created_count(stand_in) <= 2 if deaths[0] else created_count(stand_in) == 1, (
                f"request {last_request}"
            )
            assert not resource_exists(stand_in), f"request {last_request}"
            assert LEASE not in [f"{RUN}/{name}" for name in gcs.objects_below(RUN)], (
                f"request {last_request}"
            )


def test_a_launch_that_is_killed_is_continued_by_the_next(gcs: Gcs, tmp_path: Path) -> None:
    process: list[subprocess.Popen] = []
    with stand_in_for("tpu", gcs) as stand_in:

        def kill_launch(serve: Callable[[Request], Response], request: Request) -> Response:
            response = serve(request)
            process[0].kill()
            return response

        first = itertools.count()
        serve_faults([stand_in], kill_launch, lambda _, request: is_creation(request) and not next(first))
        command = [sys.executable, "-c", LAUNCH, stand_in.url, gcs.url, *NEEDED, "--cloud.image", IMAGE]
        log = tmp_path / "log"
        with log.open("w") as file:
            process.append(subprocess.Popen(command, stderr=file))
            assert process[0].wait(timeout=120) == -signal.SIGKILL, log.read_text()
        assert "if this command is killed, " in log.read_text()
        run_launch(stand_in, gcs)
        assert created_count(stand_in) == 1 and not resource_exists(stand_in)
    assert LEASE not in [f"{RUN}/{name}" for name in gcs.objects_below(RUN)]


def test_a_second_signal_ends_at_once_and_says_what_is_left(gcs: Gcs) -> None:
    process: list[subprocess.Popen] = []

    def send_signal(serve: Callable[[Request], Response], request: Request) -> Response:
        process[0].send_signal(signal.SIGTERM)
        return Response.error(503, "come again")

    with Tpu(["ACTIVE"]) as stand_in:
        serve_faults(
            [stand_in],
            send_signal,
            lambda _, request: "/nodes/" in request.path or request.method == "DELETE",
        )
        command = [sys.executable, "-c", LAUNCH, stand_in.url, gcs.url, *NEEDED, "--cloud.image", IMAGE]
        process.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
        _, log = process[0].communicate(timeout=120)
    assert process[0].returncode == 128 + signal.SIGTERM
    assert log.splitlines()[-1].startswith("launch: exiting at once; ") and log.rstrip().endswith(DELETE)


def test_of_two_launches_of_one_run_the_second_is_refused(gcs: Gcs) -> None:
    refusals: list[str] = []

    def renew_lease(seconds: float) -> None:  # in place of the first one, which waits for this test
        gcs.put(LEASE, gcs.objects_below(RUN)["launch/launcher.json"])

    def second(seconds: float) -> None:
        if not refusals:
            with pytest.raises(CloudError, match=r"another `launch` .* manages this run") as error:
                run_launch(stand_in, gcs, sleep=renew_lease)
            refusals.append(str(error.value))

    with stand_in_for("tpu", gcs) as stand_in:
        run_launch(stand_in, gcs, sleep=second)
        assert refusals and created_count(stand_in) == 1 and not resource_exists(stand_in)


def test_a_launch_whose_run_another_one_has_taken_over_ends_and_leaves_the_tpu(
    gcs: Gcs, capsys: pytest.CaptureFixture[str]
) -> None:
    def taken_over(seconds: float) -> None:
        gcs.put(LEASE, json.dumps({"host": "elsewhere", "pid": 1, "token": "another"}).encode())

    with Tpu(["ACTIVE"]) as stand_in:
        with pytest.raises(
            CloudError, match=r"another `launch` \(process 1 on elsewhere\) has taken this run over"
        ):
            run_launch(stand_in, gcs, sleep=taken_over)
        assert resource_exists(stand_in)
    assert "may remain" not in capsys.readouterr().err
    assert "launch/launcher.json" in gcs.objects_below(RUN)


def test_a_run_that_was_trained_elsewhere_is_not_started_twice(gcs: Gcs) -> None:
    def die(seconds: float) -> None:
        raise KeyError("as if it were killed")

    with Tpu(["ACTIVE"]) as stand_in, pytest.raises(KeyError):
        run_launch(stand_in, gcs, sleep=die)
    with (
        Tpu() as other_tpu,
        pytest.raises(CloudError, match="trained this run as tpu p/europe-west4-b/first, but this"),
    ):
        run_launch(other_tpu, gcs, "--cloud.name", "second")


def test_if_credentials_expire_the_message_has_the_command_that_deletes_the_tpu(
    gcs: Gcs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    send_request = AuthorizedSession.request

    def expiring(self: AuthorizedSession, method: str, url: str, *arguments: Any, **options: Any) -> Any:
        if "/nodes/" in url:
            raise RefreshError("Reauthentication is needed", retryable=False)
        return send_request(self, method, url, *arguments, **options)

    monkeypatch.setattr(AuthorizedSession, "request", expiring)
    with Tpu(["ACTIVE"]) as stand_in, pytest.raises(CloudError, match="Reauthentication is needed"):
        run_launch(stand_in, gcs)
    assert capsys.readouterr().err.rstrip().endswith(DELETE)


@pytest.mark.parametrize(
    ("their_options", "message"),
    [
        (
            ("--output_dir", "gs://bucket/other/first"),
            "not for gs://bucket/runs/first; choose another --cloud.name",
        ),
        (
            ("--train.steps", "7", "--cloud.spot", "true"),
            "with other options: cloud.spot is true there and false here; train.steps is 7 there and 10000 here. Use "
            "the same options, or delete it: COMMAND",
        ),
        (("--cloud.labels.build", "2", "--cloud.max_preemptions", "1"), None),
    ],
)
def test_a_conflict_names_the_options(their_options: tuple[str, ...], message: str | None) -> None:
    assert conflict_of(config(), recorded_options(config(*their_options)), "COMMAND") == message


@pytest.mark.parametrize("options", [None, "", "[]", "{", "{}", '{"output_dir": 1}'])
def test_what_has_recorded_no_run_is_somebody_elses(options: str | None) -> None:
    assert conflict_of(config(), options, "").startswith("not for gs://bucket/runs/first")


@pytest.mark.parametrize("service", ["tpu", "gke"])  # of Compute Engine's parts, see test_launch_compute.py
def test_a_resource_of_another_run_is_left_alone(service: str, gcs: Gcs) -> None:
    other_config = config(*options(service), "--output_dir", "gs://bucket/other/first")
    with stand_in_for(service, gcs) as stand_in:
        stand_in.create((manifest if service == "gke" else TpuVms.preview)(other_config))
        with pytest.raises(CloudError, match="exists, but not for gs://bucket/runs/first"):
            run_launch(stand_in, gcs, *options(service))
        assert resource_exists(stand_in) and created_count(stand_in) == 0


@pytest.mark.parametrize("service", ["tpu", "compute", "gke"])
def test_what_was_deleted_by_hand_is_not_requested_again(service: str, gcs: Gcs) -> None:
    stand_ins = {
        "tpu": Tpu(["ACTIVE"]),
        "compute": Compute(["RUNNING"], polls_to_finish=0),
        "gke": Gke(["Running"]),
    }
    with stand_ins[service] as stand_in:

        def delete_by_hand(seconds: float) -> None:
            if service != "compute":
                stand_in._deleting = stand_in._deleting or 3
            elif stand_in.existing is not None:
                del stand_in.parts["instanceGroupManagers", "first"]
                stand_in.existing = None

        wait_count = itertools.count()
        with pytest.raises(CloudError, match="was deleted, but not by this command"):
            run_launch(
                stand_in,
                gcs,
                *options(service),
                sleep=lambda _: delete_by_hand(0) if next(wait_count) > 10 else None,
            )
        assert created_count(stand_in) == 1 and not resource_exists(stand_in)
    assert "launch/launcher.json" not in gcs.objects_below(RUN)


@pytest.mark.parametrize("content", [b'{"host":', b'{"pid": 1}', b"\xff", b"null"])
def test_a_lease_that_no_launch_has_written_is_not_replaced(gcs: Gcs, content: bytes) -> None:
    gcs.put(LEASE, content)
    with stand_in_for("tpu", gcs) as stand_in:
        with pytest.raises(CloudError, match=r"not a file that `launch` writes: .*; delete it"):
            run_launch(stand_in, gcs, sleep=lambda seconds: None)
        assert created_count(stand_in) == 0
    assert gcs.objects_below(RUN)["launch/launcher.json"] == content


@pytest.mark.parametrize("line", [b"{broken\n", b'{"loss": 1}\n', b'{"step": 1, "loss": "x"}\n'])
def test_a_damaged_log_does_not_end_the_watch(
    gcs: Gcs, line: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    gcs.put(f"{RUN}/metrics.jsonl", line)
    with stand_in_for("tpu", gcs) as stand_in:
        run_launch(stand_in, gcs, sleep=lambda seconds: None)
        assert not resource_exists(stand_in)
    assert "the last line is not a record of `fit`" in capsys.readouterr().err
