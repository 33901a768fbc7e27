"""Launches against stand-ins for Google Cloud."""

from __future__ import annotations

import functools
import itertools
import os
import signal
from collections.abc import Callable
from typing import Any

from google.auth.credentials import AnonymousCredentials

from tests.google_cloud.gcs import Gcs
from tests.google_cloud.loopback import Loopback
from tpu_trainer.cloud.config import LaunchConfig
from tpu_trainer.cloud.google import Google
from tpu_trainer.verbs.command_line import parse
from tpu_trainer.verbs.launch import launch

IMAGE = "europe-west4-docker.pkg.dev/p/tokenmill/trainer@sha256:" + "0" * 64
RUN = "gs://bucket/runs/first"
LEASE = f"{RUN}/launch/launcher.json"
NEEDED = ["launch", "--output_dir", RUN, "--data.train", "gs://bucket/d/train", "--cloud.project", "p"]
NEEDED += ["--cloud.zone", "europe-west4-b", "--cloud.poll_seconds", "0"]
GKE = ("--cloud.service", "gke", "--cloud.cluster", "c")
COMPUTE = ("--cloud.service", "compute", "--cloud.accelerator_type", "v6e-16")
DELETE_GROUP = (
    "gcloud compute instance-groups managed delete first --project p --zone europe-west4-b --quiet; "
    "gcloud compute resource-policies delete first --project p --region europe-west4 --quiet; "
    "gcloud compute instance-templates delete first --project p --region europe-west4 --quiet"
)
DELETE_JOBSET = (
    "gcloud container clusters get-credentials c --location europe-west4 --project p && "
    "kubectl delete jobset first --namespace default"
)
DELETE = "gcloud compute tpus queued-resources delete first --project p --zone europe-west4-b --force --quiet --async"


@functools.cache
def config(*options: str) -> LaunchConfig:
    return parse([*NEEDED, "--cloud.image", IMAGE, *options])[1]


def google(url: str, storage: str) -> Google:
    """Returns access to a stand-in for a service and one for Cloud Storage."""
    return Google(
        credentials=AnonymousCredentials(), endpoint=url, storage=storage, cluster="http://{endpoint}"
    )


def run_launch(
    stand_in: Loopback, gcs: Gcs, *options: str, sleep: Callable[[float], Any] = lambda seconds: None
) -> None:
    """Launches against running stand-ins."""
    wait_count = itertools.count()

    def bounded(seconds: float) -> None:
        assert next(wait_count) < 300, "launch does not end"
        sleep(seconds)

    launch(config(*options), google(stand_in.url, gcs.url), sleep=bounded)


def signals_once(number: int) -> Callable[[float], None]:
    """Returns a `sleep` whose first call sends this process a signal."""
    if signal.getsignal(number) is signal.SIG_IGN:  # inherited, if the tests are a shell's background job
        signal.signal(number, signal.default_int_handler)
    signals_left = [number]

    def sleep(seconds: float) -> None:
        if signals_left:
            os.kill(os.getpid(), signals_left.pop())

    return sleep


def host_exit(
    gcs: Gcs, status: int, log: str = "the log\n", *, host: int = 0
) -> Callable[[dict[str, str]], None]:
    """Returns an event for a lifecycle of `Tpu` in which a host reports its container's exit, as host_start.sh does."""
    suffix = f"-{host}.txt" if host else ".txt"
    return lambda metadata: gcs.put(
        metadata["tokenmill-report"].removesuffix(".txt") + suffix, f"{status}\n{log}".encode()
    )
