"""Builds the images with buildah, which needs no daemon, and runs programs in them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / ".engines" / "images"
BUILDAH = [
    "buildah",
    *("--root", str(WORK / "storage"), "--runroot", str(WORK / "run")),
    *("--storage-driver", os.environ.get("STORAGE_DRIVER", "overlay")),
]


@dataclass(frozen=True)
class Image:
    """A built image."""

    name: str
    log: str
    """What its build printed."""

    def inspect(self) -> dict:
        """Returns its description, in the format of the Open Container Initiative."""
        return json.loads(_buildah("inspect", "--type", "image", self.name))["OCIv1"]

    def run(
        self,
        *arguments: str | Path,
        folder: Path,
        entrypoint: str | None = None,
        user: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Runs the image like `docker run --user USER -v FOLDER:FOLDER --entrypoint ENTRYPOINT IMAGE ARGUMENTS`."""
        start = [entrypoint] if entrypoint else self.inspect()["config"]["Entrypoint"]
        container = _buildah("from", "--pull-never", self.name).strip()
        try:
            options = ["--isolation", "chroot", "--volume", f"{folder}:{folder}"]
            options += ["--user", user] if user else []
            return subprocess.run(
                [*BUILDAH, "run", *options, container, "--", *start, *map(str, arguments)],
                capture_output=True,
                text=True,
                check=False,
            )
        finally:
            _buildah("rm", container)

    def files(self) -> dict[str, int]:
        """Returns the sizes of all its files in bytes, by path, without a leading slash."""
        container = _buildah("from", "--pull-never", self.name).strip()
        try:
            mounted = Path(_buildah("mount", container).strip())
            paths = [Path(folder) / name for folder, _, names in os.walk(mounted) for name in names]
            return {str(path.relative_to(mounted)): path.lstat().st_size for path in paths}
        finally:
            _buildah("rm", container)


def _buildah(*arguments: str) -> str:
    done = subprocess.run([*BUILDAH, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def build(dockerfile: str, name: str, *options: str, context: Path = ROOT) -> Image:
    """Builds a Dockerfile of deploy/ and returns the image."""
    done = subprocess.run(
        [
            *(*BUILDAH, "build", "--isolation", "chroot", "--pull-never", "--layers", *options),
            *("--file", f"deploy/{dockerfile}", "--tag", f"localhost/{name}", str(context)),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=context,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return Image(f"localhost/{name}", done.stdout)


@pytest.fixture(scope="session")
def bases() -> None:
    """The base images."""
    for tool in ("buildah", "debootstrap"):
        assert shutil.which(tool), f"install {tool}: apt-get install buildah debootstrap"
    assert os.geteuid() == 0, "building images without a daemon needs root"
    WORK.mkdir(parents=True, exist_ok=True)
    boot = ROOT / ".engines" / "boot"
    subprocess.run([ROOT / "tests" / "images" / "bases.sh", WORK, boot, *BUILDAH], check=True)


@pytest.fixture(scope="session")
def pipeline(bases: None) -> Image:
    return build("pipeline.Dockerfile", "pipeline", "--build-arg", "IMAGE=localhost/pipeline")


@pytest.fixture(scope="session")
def trainer(bases: None) -> Image:
    return build("trainer.Dockerfile", "trainer:cpu", "--target", "cpu")


@pytest.fixture(scope="session")
def tpu_trainer(bases: None) -> Image:
    return build("trainer.Dockerfile", "trainer:tpu", "--target", "tpu")
