"""The sandbox, with the images of the commit, a corpus and a tokenizer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.beam_pipeline.conftest import make_documents
from tests.cloud_build.flink_jobs import POOL_PORT
from tests.cloud_build.sandbox import BUCKET, ROOT, Sandbox
from tests.cloud_build.steps import Build
from tests.deploy.builds import FILES
from tests.google_cloud import private_network
from tests.google_cloud.metadata_server import ADDRESS

LAUNCH, IMAGES, CLEAN_UP = (
    next(path for path in FILES if path.name == name)
    for name in ("cloudbuild.yaml", "images.yaml", "clean-up.yaml")
)
ROWS = "--max_length 64 --seed 7 --unit_bytes 40000 --shard_size 150"
STEPS = 400
FIT = (
    f"--seed 0 --train.steps {STEPS} --train.batch_size 8 --train.checkpoint_every 50 --cloud.poll_seconds 1"
)


@pytest.fixture(scope="session")
def network() -> None:
    """The private network that `make test-cloud-build` provides."""
    if not private_network.is_private():
        pytest.exit("these tests run in a private network: make test-cloud-build", returncode=2)
    private_network.bring_loopback_up(ADDRESS)
    # Otherwise a connection may have this port.
    Path("/proc/sys/net/ipv4/ip_local_reserved_ports").write_text(str(POOL_PORT))


@pytest.fixture(scope="session")
def objects(network: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The objects of the bucket: a corpus in two files, and a tokenizer trained on it."""
    folder = tmp_path_factory.mktemp("objects")
    documents = make_documents(6000, seed=3)
    (folder / "corpus").mkdir()
    for name, part in (("a.txt", documents[:2500]), ("b.txt", documents[2500:])):
        (folder / "corpus" / name).write_text("\n".join(part) + "\n", encoding="utf-8")
    train = ["train-tokenizer", "--input", f"{folder}/corpus/*", "--model", "bpe", "--vocab_size", "600"]
    run_here(*train, "--output", f"{folder}/tokenizer")
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="session")
def sandbox(objects: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """The sandbox. The images of the commit are in its registry, from the build of a push to main."""
    with ExitStack() as stack:
        new_sandbox = Sandbox(tmp_path_factory.mktemp("sandbox"), objects, stack)
        Build(new_sandbox, IMAGES).run(stop_before="template")
        yield new_sandbox


@pytest.fixture(scope="session")
def expected(sandbox: Sandbox) -> dict[str, bytes]:
    """The files of the dataset, made here by Beam's in-process runner."""
    output = f"gs://{BUCKET}/expected"
    source = ["--input", f"gs://{BUCKET}/corpus/*", "--tokenizer", f"gs://{BUCKET}/tokenizer"]
    authority = str(sandbox.folder / "ca.pem")
    splits = ["--splits", "train=0.9,validation=0.1"]
    run_here("prepare", *source, *splits, *ROWS.split(), "--output", output, REQUESTS_CA_BUNDLE=authority)
    return sandbox.objects("expected")


@pytest.fixture(scope="session")
def finished_build(sandbox: Sandbox) -> Build:
    """The finished build of the tag v1.0."""
    build = build_of(sandbox, "v1.0")
    build.run()
    return build


def run_here(*arguments: str, **variables: str) -> None:
    """Runs the pipeline in this environment, not in a container."""
    done = subprocess.run(
        [sys.executable, "-m", "beam_pipeline", *arguments],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def build_of(sandbox: Sandbox, tag: str, **values: str) -> Build:
    """Returns a build of a tag: a small dataset, a small model."""
    options = {"_PREPARE_OPTIONS": ROWS, "_SPLITS": "train=0.9,validation=0.1", "_FIT_OPTIONS": FIT}
    return Build(sandbox, LAUNCH, TAG_NAME=tag, **{"_CONFIG": "tiny-clm", **options, **values})


def metrics(sandbox: Sandbox, run: str) -> list[dict]:
    """Returns the lines of a run's metrics so far."""
    if "metrics.jsonl" not in sandbox.storage.names(f"gs://{BUCKET}/runs/{run}/"):
        return []
    text = sandbox.storage.read(f"gs://{BUCKET}/runs/{run}/metrics.jsonl").decode()
    return [json.loads(line) for line in text.split("\n")[:-1]]
