"""Launches on GKE, from creating a JobSet to deleting it, against stand-ins for GKE, a cluster and Cloud Storage."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.auth.credentials import AnonymousCredentials

from tests.google_cloud.gcs import Gcs
from tests.google_cloud.gke import Gke
from tests.google_cloud.loopback import Loopback, Request, Response
from tests.google_cloud.private_network import certificate
from tests.tpu_trainer.launches import DELETE_JOBSET, GKE, RUN, config, run_launch
from tpu_trainer.cloud.gke_cluster import connect_to_cluster
from tpu_trainer.cloud.google import Google
from tpu_trainer.cloud.jobset_manifest import manifest
from tpu_trainer.support.errors import CloudError, UsageError

TWO_HOSTS = ("--cloud.accelerator_type", "v4-16")
OURS = config(*GKE)


@pytest.fixture
def train(train: Callable[..., list[str]]) -> Callable[..., list[str]]:
    """Launches on GKE against a stand-in; returns the lines of stderr."""

    def run(stand_in: Loopback, *extra_options: str, **options: Any) -> list[str]:
        return train(stand_in, *GKE, *extra_options, **options)

    return run


def test_a_jobset_is_created_trains_and_is_deleted(gcs: Gcs, train: Any) -> None:
    line = b'{"step": 50, "loss": 3.25}\n{"step": 1'

    def scheduled(gke: Gke) -> None:
        gke.host(0, {"running": {}})
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/3 nodes",
        }
        gke.host(1, {}, conditions=[condition])

    def pulls(gke: Gke) -> None:
        gke.host(1, {"waiting": {"reason": "ContainerCreating"}})

    def restarted(gke: Gke) -> None:
        gke.restarts = 1

    lifecycle = ["Suspended", "Pending", scheduled, "Pending", pulls, "Pending", "Running"]
    lifecycle += [
        lambda _: gcs.put(f"{RUN}/metrics.jsonl", line),
        "Running",
        restarted,
        "Running",
        "Completed",
    ]
    gke = Gke(lifecycle)
    assert train(gke, *TWO_HOSTS, "--cloud.queue", "team", "--train.steps", "50") == [
        "launch: first: requesting v4-16 in p/europe-west4/c/default; if this command is killed, the training goes on; "
        f"delete it with: {DELETE_JOBSET}",
        "launch: first: waiting in Kueue's queue team",
        "launch: first: 0 of 2 hosts are running",
        "launch: first: 1 of 2 hosts are running: Unschedulable: 0/3 nodes",
        "launch: first: 1 of 2 hosts are running",
        "launch: first: the TPU is active",
        "launch: step 50: loss 3.250",
        "launch: first: the TPU is active (restart 1)",
        "launch: first: finished: gs://bucket/runs/first",
    ]
    assert gke.existing is None and len(gke.created) == 1
    assert "launch/launcher.json" not in gcs.objects_below(RUN)


def exited(status: int) -> dict:
    return {"terminated": {"exitCode": status}}


@pytest.mark.parametrize(
    ("statuses", "message"),
    [
        ({0: 2, 1: 75}, r"first: `fit` exited with status 2 .*\noutput of host 0$"),
        ({0: 75, 1: 137}, r"first: host 1 of the TPU exited with status 137 .*\noutput of host 1$"),
        ({0: 134, 1: 134}, r"first: `fit` exited with status 134 "),
        ({}, r"the JobSet has failed: FailJobSetFailurePolicyAction: jobset failed due to"),
    ],
)
def test_a_failed_host_is_named_with_its_output(statuses: dict[int, int], message: str, train: Any) -> None:
    def fails(gke: Gke) -> None:
        gke.pods = []
        for host, status in statuses.items():
            gke.host(host, exited(status), log=f"output of host {host}", phase="Failed")

    gke = Gke(["Running", fails, "Failed"])
    with pytest.raises(CloudError, match=message):
        train(gke, *TWO_HOSTS)
    assert gke.existing is None


def test_output_that_is_gone_is_no_error(train: Any) -> None:
    gke = Gke([lambda gke: gke.host(0, exited(1), phase="Failed"), "Failed"])
    with pytest.raises(CloudError, match=r"status 1 .*\n\(its output is no longer available\)"):
        train(gke)


def test_of_a_thousand_failed_hosts_the_output_of_a_few_is_read(train: Any) -> None:
    def fails(gke: Gke) -> None:
        gke.pods = []
        for host in range(1024):
            gke.host(host, exited(1), log=f"output of host {host}", phase="Failed")

    gke = Gke([fails, "Failed"])
    serve, logs = gke.serve, []

    def count_and_serve(request: Request) -> Response:
        logs.extend([request.path] if request.path.endswith("/log") else [])
        return serve(request)

    gke.serve = count_and_serve
    with pytest.raises(CloudError, match=r"Other hosts that failed: 3, 4, .*kubectl logs POD"):
        train(gke, "--cloud.accelerator_type", "v4-8192")
    assert len(logs) == 3


def test_too_many_restarts_end_the_launch(train: Any) -> None:
    gke = Gke(["Running", "Exhausted"])
    with pytest.raises(CloudError, match=r"more than 3 times \(--cloud.max_preemptions\); run the same"):
        train(gke, "--cloud.max_preemptions", "3")
    assert gke.existing is None and gke.created[0]["spec"]["failurePolicy"]["maxRestarts"] == 3


def test_a_quota_that_keeps_pods_from_existing_is_shown(train: Any) -> None:
    events = [
        {
            "involvedObject": {"name": name},
            "lastTimestamp": timestamp,
            "reason": "FailedCreate",
            "message": text,
        }
        for name, timestamp, text in (
            ("first-fit-0", "2026-01-01T00:00:02Z", "exceeded quota: google.com/tpu"),
            ("first-fit-0", "2026-01-01T00:00:01Z", "older"),
            ("firstborn", "2026-01-01T00:00:03Z", "of another JobSet"),
        )
    ]
    gke = Gke([lambda gke: gke.events.extend(events), "Pending", "Completed"])
    lines = train(gke)
    assert "launch: first: 0 of 1 hosts are running: FailedCreate: exceeded quota: google.com/tpu" in lines


def test_an_image_that_cannot_be_pulled_ends_the_launch(train: Any) -> None:
    waiting_state = {
        "waiting": {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "x": denied'}
    }
    gke = Gke([lambda gke: gke.host(0, waiting_state), "Pending"])
    with pytest.raises(CloudError, match=r"cannot start: ImagePullBackOff: Back-off .* denied"):
        train(gke)
    assert gke.existing is None


def test_a_jobset_that_is_being_deleted_is_waited_for_whosever_it_is(train: Any) -> None:
    gke = Gke(["Running"], ["Completed"])
    gke.create(manifest(config(*GKE, "--train.steps", "7")))
    gke._deleting = 3
    assert train(gke)[0] == "launch: first: a JobSet of this name is being deleted"
    assert len(gke.created) == 1 and gke.existing is None


def test_one_that_takes_the_name_meanwhile_is_not_deleted(train: Any) -> None:
    """Between the last look at the JobSet and its deletion."""
    other_jobset = {"metadata": {"name": "first"}, "spec": {"replicatedJobs": []}}

    class Racing(Gke):
        def _delete(self, name: str, options: dict) -> Response:
            self._lifecycles.append(["Pending"])
            self.create(other_jobset)
            return super()._delete(name, options)

    gke = Racing(["Completed"])
    assert train(gke)[-1] == "launch: first: finished: gs://bucket/runs/first"
    assert gke.existing["metadata"]["uid"] == "uid-2" and not gke._deleting


def change(**values: Any) -> Gke:
    gke = Gke(["Completed"])
    for name, value in values.items():
        setattr(gke, name, value)
    return gke


@pytest.mark.parametrize(
    ("gke", "options", "message"),
    [
        (change(installed=False), (), r"has no JobSets; install them: kubectl apply --server-side -f https"),
        (
            change(),
            ("--cloud.cluster", "d"),
            r"404 GET .*: Not found: .*clusters/d\.\. Set --cloud.cluster and",
        ),
        (
            change(),
            ("--cloud.namespace", "n"),
            r'404 POST .*: namespaces "n" not found\. Create the namespace: kubectl',
        ),
        (
            change(forbidden={("create", "jobsets"), ("get", "pods/log")}),
            (),
            "permit this account to create jobsets, get pods/log in the namespace default",
        ),
        (change(cluster={"status": "STOPPING", "statusMessage": "bye"}), (), "cluster c is STOPPING: bye"),
        (change(cluster={"status": "PROVISIONING"}), (), r"no endpoint yet \(status PROVISIONING\)"),
    ],
)
def test_what_is_missing_is_said_before_anything_is_created(
    gke: Gke, options: tuple[str, ...], message: str, train: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(CloudError, match=message):
        train(gke, *options)
    assert gke.created == []
    assert "may remain" not in capsys.readouterr().err


def test_a_cluster_that_cannot_be_reached_says_how_to_reach_it(gcs: Gcs) -> None:
    with Gke() as gke:
        gke.cluster["endpoint"] = "localhost:9"
        with pytest.raises(CloudError, match=r"cannot be reached from here: .*--enable-dns-access"):
            run_launch(gke, gcs, *GKE)
        assert gke.created == []


def test_the_certificate_of_the_cluster_is_checked(tmp_path: Path) -> None:
    class Cluster(Loopback):
        def serve(self, request: Request) -> Response:
            return Response.of_json({"path": request.path})

    (tmp_path / "other").mkdir()
    certificate(tmp_path / "other", ["localhost"])
    with Cluster(tls=certificate(tmp_path, ["localhost"])) as cluster, Gke() as gke:
        google = Google(credentials=AnonymousCredentials(), endpoint=gke.url)
        gke.cluster["endpoint"] = cluster.url.removeprefix("https://")
        for folder, is_trusted in ((tmp_path, True), (tmp_path / "other", False)):
            authority = base64.b64encode((folder / "ca.pem").read_bytes()).decode()
            gke.cluster["masterAuth"]["clusterCaCertificate"] = authority
            api = connect_to_cluster(google, OURS)
            if is_trusted:
                assert api.call("GET", "version") == {"path": "/version"}
            else:
                with pytest.raises(CloudError, match="CERTIFICATE_VERIFY_FAILED"):
                    api.call("GET", "version")


def test_the_dns_endpoint_is_preferred_if_it_is_open() -> None:
    with Gke() as gke:
        google = Google(credentials=AnonymousCredentials(), endpoint=gke.url)
        for is_open in (True, False):
            dns_endpoint = {"endpoint": "gke-1a2b.europe-west4.gke.goog", "allowExternalTraffic": is_open}
            gke.cluster["controlPlaneEndpointsConfig"] = {"dnsEndpointConfig": dns_endpoint}
            api = connect_to_cluster(google, OURS)
            assert (api.url == "https://gke-1a2b.europe-west4.gke.goog") == is_open
            assert (api.verify is None) == is_open


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--cloud.cluster", "C"), "--cloud.cluster is 'C': must be lowercase"),
        (("--cloud.accelerator_type", "v5p-40"), "v5p has no slice of this size"),
        (("--cloud.topology", "2x2"), "v5litepod-8 has 8 chips; its topologies are 2x4"),
        (("--cloud.spot", "true", "--cloud.reservation", "r"), "--cloud.spot and --cloud.reservation: nodes"),
        (
            ("--cloud.service_account", "a@p.iam.gserviceaccount.com"),
            "a Kubernetes service account, not an e",
        ),
        (("--cloud.cluster_location", "europe"), "must be a region or a zone"),
        (("--cloud.slices", "0"), "must be at least 1"),
        (("--cloud.slices", "2"), "is 2: GKE connects only slices of several hosts, and v5litepod-8 is one"),
        (("--strategy", "tpu"), "trains with --strategy pjrt; omit"),
        (("--strategy", "pjrt", "--mesh.process_id", "1"), "`launch` sets them on each host"),
        (("--cloud.name", "a" * 50), "must have at most 49 characters, so that its pods' names"),
        (("--cloud.labels.commit", "v1_"), "begin and end with a letter or digit"),
        (("--cloud.service", "tpu"), "--cloud.cluster is 'c': is an option of --cloud.service gke"),
    ],
)
def test_options_are_checked_before_any_request(options: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        config(*GKE, *options)
