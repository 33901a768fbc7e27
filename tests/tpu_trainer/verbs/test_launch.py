"""Launches, from requesting a TPU to deleting it, against stand-ins for the TPU API and Cloud Storage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.google_cloud.gcs import Gcs
from tests.google_cloud.loopback import Loopback, Request, Response
from tests.google_cloud.tpu import Tpu
from tests.google_cloud.vertex import Vertex
from tests.tpu_trainer import launches
from tests.tpu_trainer.launches import GKE, IMAGE, NEEDED, RUN, config, run_launch
from tpu_trainer.config.files import load_fit_config
from tpu_trainer.support.errors import CloudError, UsageError


def test_a_tpu_is_requested_trains_and_is_deleted(
    gcs: Gcs, train: Any, host_exit: Any, tmp_path: Path
) -> None:
    line = b'{"step": 50, "loss": 3.25}\n{"step": 1'
    lifecycle = [
        *("CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES", "WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"),
        lambda metadata: gcs.put(f"{RUN}/metrics.jsonl", line),
        *("ACTIVE", "ACTIVE", host_exit(0), "ACTIVE"),
    ]
    tpu = Tpu(lifecycle)
    assert train(tpu, "--train.steps", "50", "--cloud.service_account", "a@p.iam") == [
        "launch: first: requesting a v5litepod-8 in europe-west4-b; if this command is killed, the training goes on; "
        f"delete it with: {launches.DELETE}",
        *(
            f"launch: first: {state}"
            for state in ("CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING")
        ),
        "launch: first: the TPU is active",
        "launch: step 50: loss 3.250",
        "launch: first: finished: gs://bucket/runs/first",
    ]
    assert tpu.existing is None
    [body] = tpu.created
    node = body["tpu"]["nodeSpec"][0]["node"]
    assert "spot" not in body
    assert node["serviceAccount"]["email"] == "a@p.iam"
    assert node["metadata"]["tokenmill-image"] == IMAGE
    (tmp_path / "fit.yaml").write_text(node["metadata"]["tokenmill-config"])
    of_host = load_fit_config(str(tmp_path / "fit.yaml"))
    assert (of_host.train.steps, of_host.output_dir, of_host.strategy) == (50, RUN, "tpu")


def test_training_continues_after_each_preemption(train: Any, host_exit: Any) -> None:
    tpu = Tpu(
        ["ACTIVE", "SUSPENDING"],
        ["ACTIVE", ("ACTIVE", "PREEMPTED")],
        ["WAITING_FOR_RESOURCES", host_exit(75), "ACTIVE"],
        [host_exit(137), "SUSPENDED"],
        [host_exit(69), "SUSPENDED"],  # the slice lost a host during startup
        [host_exit(0), "SUSPENDED"],  # preempted just after training finished
    )
    lines = train(tpu, "--cloud.spot", "true")
    assert lines.count("launch: first: the TPU was preempted; the run continues on a new one") == 5
    assert lines[-1] == "launch: first: finished: gs://bucket/runs/first"
    assert tpu.existing is None
    assert [body["spot"] for body in tpu.created] == [{}] * 6
    nodes = [body["tpu"]["nodeSpec"][0]["node"]["metadata"] for body in tpu.created]
    assert len({node["tokenmill-report"] for node in nodes}) == 6
    assert len({node["tokenmill-config"] for node in nodes}) == 1


def test_too_many_preemptions_end_the_launch(train: Any) -> None:
    tpu = Tpu(["SUSPENDED"], ["SUSPENDED"], ["SUSPENDED"])
    with pytest.raises(CloudError, match=r"preempted 2 times \(--cloud.max_preemptions is 1\)"):
        train(tpu, "--cloud.max_preemptions", "1")
    assert tpu.existing is None and len(tpu.created) == 2


@pytest.mark.parametrize(
    ("lifecycle", "message"),
    [
        (["WAITING_FOR_RESOURCES", "FAILED"], "the request for a TPU failed: no more capacity in the zone"),
        (["ACTIVE", 2], r"`fit` exited with status 2 .*\nno such folder"),
        (["ACTIVE", 69], "`fit` exited with status 69"),
        (["ACTIVE", 137], "`fit` exited with status 137"),  # out of memory, as it would be on a new TPU
        (["ACTIVE", "77"], "unknown state: '77'"),
    ],
)
def test_a_failure_is_reported_and_the_tpu_deleted(
    lifecycle: Sequence[Any], message: str, train: Any, host_exit: Any
) -> None:
    tpu = Tpu(
        [
            host_exit(each, "no such folder\n") if isinstance(each, int) else each
            for each in [*lifecycle, lifecycle[0]]
        ]
    )
    with pytest.raises(CloudError, match=message):
        train(tpu)
    assert tpu.existing is None or "77" in lifecycle


@pytest.mark.parametrize(
    ("reports", "message"),
    [
        ({3: 1}, r"first: host 3 of the TPU exited with status 1 .*\nhost 3's log$"),
        ({3: 137, 0: 75}, r"first: host 3 of the TPU exited with status 137 .*\nhost 3's log$"),
        (
            {3: 137, 0: 2},
            r"first: `fit` exited with status 2 .*\nhost 0's log\nhost 3 of the TPU exited with",
        ),
        (
            {1: 1, 2: 1, 3: 1, 4: 1, 10: 1},
            r"host 3's log\nOther hosts that failed: 4, 10; their reports are in gs://bucket/runs/first/launch$",
        ),
    ],
)
def test_a_failed_host_is_named_with_its_log(
    reports: dict[int, int], message: str, train: Any, host_exit: Any
) -> None:
    exits = [host_exit(status, f"host {host}'s log", host=host) for host, status in reports.items()]
    tpu = Tpu(["ACTIVE", *exits, "ACTIVE"])
    with pytest.raises(CloudError, match=message):
        train(tpu)
    assert tpu.existing is None and len(tpu.created) == 1


def test_after_other_hosts_stop_the_first_host_has_time_to_save(train: Any, host_exit: Any) -> None:
    existing = []

    def record_existing(metadata: dict[str, str]) -> None:
        existing.append(tpu.existing)

    tpu = Tpu(
        ["ACTIVE", host_exit(143, host=3), "ACTIVE", "ACTIVE", record_existing, host_exit(75), "ACTIVE"],
        ["ACTIVE", host_exit(143, host=1), host_exit(0), "ACTIVE"],
    )
    assert train(tpu)[-1] == "launch: first: finished: gs://bucket/runs/first"
    assert existing[0] is not None and len(tpu.created) == 2


def test_with_pjrt_a_host_that_has_lost_the_first_one_is_not_the_cause(train: Any, host_exit: Any) -> None:
    tpu = Tpu(
        ["ACTIVE", host_exit(134, host=1), "ACTIVE", host_exit(0, host=2), ("ACTIVE", "PREEMPTED")],
        ["ACTIVE", host_exit(75, host=1), host_exit(75), "ACTIVE"],
        ["ACTIVE", host_exit(134, host=1), host_exit(2), "ACTIVE"],
    )
    with pytest.raises(CloudError, match="first: `fit` exited with status 2 ") as error:
        train(tpu, "--strategy", "pjrt", "--mesh.fsdp", "true")
    assert "host 1" not in str(error.value)
    assert len(tpu.created) == 3
    metadata = tpu.created[0]["tpu"]["nodeSpec"][0]["node"]["metadata"]
    assert metadata["tokenmill-strategy"] == "pjrt"
    assert yaml.safe_load(metadata["tokenmill-config"])["mesh"]["fsdp"] is True


def test_with_pjrt_a_first_host_that_never_reports_is_lost(train: Any, host_exit: Any) -> None:
    tpu = Tpu(["ACTIVE", host_exit(134, host=1), "ACTIVE"], ["ACTIVE", host_exit(0), "ACTIVE"])
    waits = []
    lines = train(tpu, "--strategy", "pjrt", "--cloud.poll_seconds", "60", sleep=waits.append)
    assert lines[-1] == "launch: first: finished: gs://bucket/runs/first"
    assert len(tpu.created) == 2 and len(waits) < 30


def test_reports_are_found_on_all_pages_and_among_other_files(host_exit: Any) -> None:
    with Gcs("bucket", page_size=1) as gcs, Tpu(["ACTIVE", "ACTIVE"]) as tpu:

        def report(metadata: dict[str, str]) -> None:
            prefix = metadata["tokenmill-report"].removesuffix(".txt")
            gcs.put(f"{prefix}-notes.txt", b"not a report")
            gcs.put(f"{prefix}0.txt", b"2\nof another attempt")
            launches.host_exit(gcs, 0)(metadata)

        tpu._lifecycles[0].insert(1, report)
        run_launch(tpu, gcs)
        assert tpu.existing is None


def test_vertex_runs_and_fails(train: Any, gcs: Gcs) -> None:
    vertex = ("--cloud.service", "vertex")
    steps = ("JOB_STATE_PENDING", "JOB_STATE_RUNNING")
    lines = train(Vertex(*steps, "JOB_STATE_SUCCEEDED"), *vertex)
    assert lines[0].startswith(
        "launch: first: requesting a ct5lp-hightpu-8t in europe-west4; if this command is killed"
    )
    job = "projects/1/locations/europe-west4/customJobs/7"
    states = [f"launch: first: {job}: {state}" for state in steps]
    assert lines[1:] == [*states, f"launch: first: finished: {RUN}"]
    with pytest.raises(CloudError, match="customJobs/7: JOB_STATE_FAILED: exit status 2"):
        train(Vertex(*steps, "JOB_STATE_FAILED"), *vertex)
    assert gcs.objects_below(RUN) == {}


def test_a_refusal_is_shown_with_the_message_of_google_cloud(train: Any) -> None:
    class Refusing(Loopback):
        def serve(self, request: Request) -> Response:
            if request.method == "GET":
                return Response.error(404, "nothing")
            return Response.error(403, "Permission 'tpu.queuedResources.create' denied")

    with pytest.raises(CloudError, match=r"403 POST .*: Permission 'tpu.queuedResources.create' denied"):
        train(Refusing())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--cloud.image", "europe-west4-docker.pkg.dev/p/tokenmill/trainer:v1"],
            "must be HOST/PATH@sha256:DIGEST",
        ),
        (["--data.train", "/data/train"], "must be a gs:// path"),
        (["--output_dir", "gs://bucket/runs/My_Run"], "set --cloud.name"),
        (["--cloud.zone", "europe-west4"], "must be a zone, such as europe-west4-b"),
        (["--cloud.project", "p; rm -rf ~"], "must be a project's ID"),
        (["--cloud.valid_for", "6 hours"], "such as 6h"),
        (["--cloud.poll_seconds", "-1"], "--cloud.poll_seconds is -1.0: must not be negative"),
        (["--optimizer.learning_rate", ".inf"], "must be positive and finite"),
        (["--cloud.labels.commit", "v1.2"], "at most 63 lowercase letters"),
        (["--strategy", "cpu"], "is 'cpu': `launch` trains on a TPU; omit it"),
        (
            ["--strategy", "tpu", "--cloud.accelerator_type", "v5litepod-16"],
            "v5litepod-16 has 4 hosts: `launch` trains with --strategy pjrt",
        ),
        (["--cloud.accelerator_type", "v5litepod-12"], "v5litepod has no slice of this size"),
        (["--cloud.accelerator_type", "tpu7x-8"], "only --cloud.service compute and gke have this"),
        (["--train.steps", "0"], "must be at least 1"),
    ],
)
def test_options_are_checked_before_any_request(arguments: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        config(*arguments)


@pytest.mark.parametrize(
    ("accelerator_type", "strategy"),
    [
        ("v5litepod-8", "tpu"),
        ("v5litepod-16", "pjrt"),
        ("v4-8", "tpu"),
        ("v4-16", "pjrt"),
        ("v3-8", "tpu"),
        ("v3-32", "pjrt"),
    ],
)
def test_slices_of_several_hosts_train_with_pjrt(accelerator_type: str, strategy: str) -> None:
    launch_config = config("--cloud.accelerator_type", accelerator_type)
    assert launch_config.training_strategy == launch_config.for_fit().strategy == strategy


def test_a_zone_of_ai_hardware_alone_belongs_to_the_region_of_its_name() -> None:
    assert config("--cloud.zone", "us-central1-ai1a").cloud.region == "us-central1"


def test_dry_run_prints_the_request(run_verb: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    for service_options, key in (
        ([], "tpu"),
        (GKE, "kind"),
        (["--cloud.service", "vertex"], "jobSpec"),
    ):
        options = ["--cloud.image", IMAGE, "--cloud.dry_run", "true", *service_options]
        assert run_verb(*NEEDED, *options) == 0
        request = yaml.safe_load(capsys.readouterr().out)
        assert key in request
        if key == "tpu":  # the same text in every process
            metadata = request["tpu"]["nodeSpec"][0]["node"]["metadata"]
            assert list(metadata) == sorted(metadata)


def test_without_credentials_the_message_has_the_command_that_gets_them(
    run_verb: Callable[..., int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    assert run_verb(*NEEDED, "--cloud.image", IMAGE) == 2
    assert "gcloud auth application-default login" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("machine_type", "tpu_type"),
    [
        ("ct5lp-hightpu-8t", "v5litepod-8"),
        ("ct6e-standard-8t", "v6e-8"),
        ("ct5p-hightpu-4t", "v5p-8"),
        ("n2-standard-8", None),
    ],
)
def test_fit_gets_the_tpu_of_vertex_ais_machine_type(machine_type: str, tpu_type: str | None) -> None:
    launch_config = config("--cloud.service", "vertex", "--cloud.machine_type", machine_type)
    assert launch_config.for_fit().tpu.accelerator_type == tpu_type
