"""Builds that end in the middle leave nothing behind, and the next build of the tag continues."""

from __future__ import annotations

import signal

from tests.cloud_build.conftest import CLEAN_UP, STEPS, build_of, metrics
from tests.cloud_build.sandbox import BUCKET, Sandbox
from tests.cloud_build.steps import Build, Step
from tests.engines.servers import wait_for

_TERMINATED = 128 + signal.SIGTERM


def test_builds_that_are_cancelled_in_each_step_end_with_the_dataset_and_model_of_an_undisturbed_one(
    sandbox: Sandbox, expected: dict[str, bytes], finished_build: Build
) -> None:
    build = build_of(sandbox, "v2.0")
    build.run(stop_before="dataset")
    step = build.start("dataset")
    step.wait_until("the container runs", lambda: "prepare" in sandbox.tools.containers())
    assert_cancelled(step, sandbox, "v2-0")
    assert not manifests(sandbox, "v2-0")  # the tokenizer may be there, depending on when the signal arrived

    step = build.start("dataset")
    step.wait_until("some work units are finished", lambda: bool(units(sandbox, "v2-0")))
    assert_cancelled(step, sandbox, "v2-0")
    assert not manifests(sandbox, "v2-0")

    build = build_of(sandbox, "v2.0")
    build.run(stop_before="verify")
    assert sandbox.objects("datasets/v2-0") == expected
    step = build.start("verify")
    step.wait_until("the job runs", lambda: sandbox.flink.running_job() is not None)
    assert_cancelled(step, sandbox, "v2-0")
    assert build.start("verify").wait() == 0

    build.run(stop_before="train")
    for service in ("tpu", "vertex"):
        step = start_training(build, sandbox, "v2-0", service)
        assert_cancelled(step, sandbox, "v2-0")
        assert "summary.json" not in sandbox.objects("runs/v2-0")
    start_training(build, sandbox, "v2-0", "vertex").kill("launch")
    assert sandbox.vertex.active_jobs
    clean_up(sandbox, build)

    build_of(sandbox, "v2.0", _SERVICE="vertex").run()
    assert_nothing_remains(sandbox, "v2-0")
    assert sandbox.objects("datasets/v2-0") == expected
    assert metrics(sandbox, "v2-0")[-1] == metrics(sandbox, "v1-0")[-1]


def test_what_a_killed_build_leaves_is_cleaned_up(sandbox: Sandbox, expected: dict[str, bytes]) -> None:
    killed_build = build_of(sandbox, "v3.0")
    killed_build.run(stop_before="dataset")
    step = killed_build.start("dataset")
    step.wait_until("some work units are finished", lambda: bool(units(sandbox, "v3-0")))
    step.kill("prepare")
    assert {"containers", "Dataflow"} <= set(sandbox.remaining_resources())
    clean_up(sandbox, killed_build)
    assert not manifests(sandbox, "v3-0")

    # The killed launcher may still be alive somewhere, so its lock holds for some minutes.
    build = build_of(sandbox, "v3.0")
    build.run(stop_before="dataset")
    step = build.start("dataset")
    assert step.wait() == 2
    lock = f"gs://{BUCKET}/datasets/v3-0/_staging/run.lock"
    assert "its lock expires" in step.output and f"delete {lock}" in step.output
    assert sandbox.remaining_resources() == {}
    sandbox.storage.delete(lock)
    assert build.start("dataset").wait() == 0
    assert sandbox.objects("datasets/v3-0") == expected

    build.run(stop_before="train")
    start_training(build, sandbox, "v3-0", "tpu").kill("launch")
    assert sandbox.tpu.exists
    clean_up(sandbox, build)
    step = build.start("train")
    assert step.wait() == 0, step.output
    assert metrics(sandbox, "v3-0")[-1]["step"] == STEPS
    assert_nothing_remains(sandbox, "v3-0")


def start_training(build: Build, sandbox: Sandbox, name: str, service: str) -> Step:
    """Starts the training, and waits until it has gone on, beyond its first checkpoint."""
    steps_to_reach = max(2, len(metrics(sandbox, name)) + 1)
    step = build.start("train", _SERVICE=service)
    step.wait_until("the training goes on", lambda: len(metrics(sandbox, name)) >= steps_to_reach)
    return step


def assert_cancelled(step: Step, sandbox: Sandbox, name: str) -> None:
    """Cancels a step, and checks that nothing of it remains."""
    assert step.cancel() == _TERMINATED, step.output
    assert_nothing_remains(sandbox, name)


def assert_nothing_remains(sandbox: Sandbox, name: str) -> None:
    """Checks that nothing runs or is rented, and that nothing of the tag `name` is locked."""
    assert sandbox.remaining_resources() == {}
    assert "_staging/run.lock" not in sandbox.objects(f"datasets/{name}")
    assert "launch/launcher.json" not in sandbox.objects(f"runs/{name}")
    assert not [path for path in sandbox.objects("tmp") if "tokenmill-verify" in path]


def clean_up(sandbox: Sandbox, build: Build) -> None:
    """Runs the build that follows a failed one, and waits until its effects are there."""
    Build(sandbox, CLEAN_UP, _BUILD=build.id).run()
    wait_for("the end of what was cancelled", lambda: True if not sandbox.remaining_resources() else None)


def units(sandbox: Sandbox, name: str) -> list[str]:
    """Returns the finished work units of a dataset."""
    names = sandbox.storage.names(f"gs://{BUCKET}/datasets/{name}/")
    return [path for path in names if "/units/" in path]


def manifests(sandbox: Sandbox, name: str) -> list[str]:
    names = sandbox.storage.names(f"gs://{BUCKET}/datasets/{name}/")
    return [path for path in names if path.endswith("manifest.json")]
