"""The pipeline's image as the environment of Flink's workers."""

from __future__ import annotations

from pathlib import Path

from tests.beam_pipeline.runs import content
from tests.cloud_build.conftest import ROWS, run_here
from tests.cloud_build.flink_jobs import POOL_PORT
from tests.cloud_build.sandbox import Sandbox
from tests.engines.servers import is_listening, wait_for
from tests.images.buildah import PIPELINE


def test_prepare_with_workers_in_the_image_writes_what_the_in_process_runner_writes(
    sandbox: Sandbox, objects: dict[str, bytes]
) -> None:
    folder = sandbox.folder / "shared"
    for name, data in objects.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    source = ["--input", f"{folder}/corpus/*", "--tokenizer", f"{folder}/tokenizer", *ROWS.split()]
    run_here("prepare", *source, "--output", f"{folder}/here")

    run = ["run", "--network", "host", "--volume", f"{folder}:{folder}"]
    docker = sandbox.tools.docker
    docker(*run, "--detach", "--name", "pool", PIPELINE, "--worker_pool").check_returncode()
    try:
        wait_for("the pool", lambda: is_listening(POOL_PORT) or None)
        command = [*run, "--rm", "--name", "prepare", "--entrypoint", "python", PIPELINE]
        command += ["-m", "beam_pipeline", "prepare", *source, "--output", f"{folder}/on-flink"]
        done = docker(*command, *sandbox.flink.options(2))
        assert done.returncode == 0, done.stdout + done.stderr
    finally:
        docker("rm", "--force", "pool").check_returncode()
    files = content(Path(folder) / "on-flink")
    assert len([name for name in files if name.endswith(".tfrecord")]) > 10
    assert files == content(Path(folder) / "here")
