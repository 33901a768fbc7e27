"""From a tag to a trained model, and its provenance."""

from __future__ import annotations

import hashlib
import json

from tests.cloud_build.conftest import FIT, STEPS, metrics
from tests.cloud_build.sandbox import BUCKET, Sandbox
from tests.cloud_build.steps import Build
from tests.deploy.builds import BUILT_IN
from tests.images.buildah import PIPELINE, inspect


def test_a_tag_becomes_a_model_of_known_provenance(
    sandbox: Sandbox, expected: dict[str, bytes], finished_build: Build
) -> None:
    assert sandbox.objects("datasets/v1-0") == expected
    run = f"gs://{BUCKET}/runs/v1-0"
    summary = json.loads(sandbox.storage.read(f"{run}/summary.json"))
    assert summary["steps"] == STEPS
    losses = [line["loss"] for line in metrics(sandbox, "v1-0") if "loss" in line]
    assert losses[-1] < losses[0] - 0.5

    provenance = json.loads(sandbox.storage.read(f"{run}/launch/provenance.json"))
    manifest = expected["train/manifest.json"]
    images = {
        name: (finished_build.workspace / f"{name}-image").read_text().strip()
        for name in ("pipeline", "trainer")
    }
    assert provenance == {
        "tag": "v1.0",
        "commit": BUILT_IN["COMMIT_SHA"],
        "build": finished_build.id,
        "pipeline_image": images["pipeline"],
        "trainer_image": images["trainer"],
        "dataset": f"gs://{BUCKET}/datasets/v1-0",
        "dataset_fingerprint": json.loads(manifest)["fingerprint"],
        "train_manifest_sha256": hashlib.sha256(manifest).hexdigest(),
        "config": "tiny-clm",
        "fit_options": FIT,
    }
    assert f"TOKENMILL_PIPELINE_IMAGE={PIPELINE}" in inspect(PIPELINE)["OCIv1"]["config"]["Env"]
    jobs = [job for job in sandbox.dataflow.jobs.values() if job.labels["build"] == finished_build.id]
    assert [job.labels["verb"] for job in jobs] == ["prepare", "verify"]
    for job in jobs:
        [pool] = job.environment.worker_pools
        assert [each.container_image for each in pool.sdk_harness_container_images] == [images["pipeline"]]
    nodes = [each["node"] for body in sandbox.tpu.created for each in body["tpu"]["nodeSpec"]]
    [node] = [each for each in nodes if each["labels"]["run"] == "v1-0"]
    assert node["metadata"]["tokenmill-image"] == images["trainer"]
    assert node["labels"] == {"run": "v1-0", "build": finished_build.id, "commit": BUILT_IN["COMMIT_SHA"]}
    assert sandbox.remaining_resources() == {}
