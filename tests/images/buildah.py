"""Builds the images with buildah, which needs no daemon.

`python -m tests.images.buildah` builds all of them. Standard library only: the sandbox's `docker` imports it, too.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / ".engines" / "images"
BOOT = ROOT / ".engines" / "boot"
BUILDAH = [
    "buildah",
    *("--root", str(WORK / "storage"), "--runroot", str(WORK / "run")),
    *("--storage-driver", os.environ.get("STORAGE_DRIVER", "overlay")),
]
OFFLINE = ["--isolation", "chroot", "--pull-never", "--layers"]
"""Options of builds: without a daemon, from base images that are there, with reuse of layers."""
# buildah reuses layers that depend on a build argument for other values of it, so this is the name in the sandbox.
PIPELINE = (
    "europe-west4-docker.pkg.dev/my-project/tokenmill/pipeline:1234567890abcdef1234567890abcdef12345678"
)
DOCKERFILES = {
    "pipeline": ["--file", "deploy/pipeline.Dockerfile", "--build-arg", f"IMAGE={PIPELINE}"],
    "trainer:cpu": ["--file", "deploy/trainer.Dockerfile", "--target", "cpu"],
    "trainer:pjrt": ["--file", "deploy/trainer.Dockerfile", "--target", "pjrt"],
    "trainer:tpu": ["--file", "deploy/trainer.Dockerfile", "--target", "tpu"],
}


@dataclass(frozen=True)
class Image:
    """A built image."""

    name: str
    log: str
    """The output of its build."""

    def inspect(self) -> dict:
        """Returns its description, in the format of the Open Container Initiative."""
        return inspect(self.name)["OCIv1"]

    def run(
        self,
        *arguments: str | Path,
        folder: Path,
        entrypoint: str | None = None,
        user: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Runs the image like `docker run --user USER -v FOLDER:FOLDER --entrypoint ENTRYPOINT IMAGE ARGUMENTS`."""
        start = [entrypoint] if entrypoint else self.inspect()["config"]["Entrypoint"]
        container = buildah("from", "--pull-never", self.name).strip()
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
            buildah("rm", container)

    def files(self) -> dict[str, int]:
        """Returns the sizes of all its files in bytes, by path, without a leading slash."""
        container = buildah("from", "--pull-never", self.name).strip()
        try:
            mount_point = Path(buildah("mount", container).strip())
            paths = [Path(folder) / name for folder, _, names in os.walk(mount_point) for name in names]
            return {str(path.relative_to(mount_point)): path.lstat().st_size for path in paths}
        finally:
            buildah("rm", container)


def buildah(*arguments: str) -> str:
    """Returns what a command of buildah prints.

    Raises:
        RuntimeError: If it fails.
    """
    done = subprocess.run([*BUILDAH, *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"buildah {' '.join(arguments)}: {done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout


def inspect(image: str) -> dict:
    """Returns what buildah knows of an image."""
    return json.loads(buildah("inspect", "--type", "image", image))


def build(options: Sequence[str], name: str, context: Path = ROOT) -> Image:
    """Builds an image. Layers of earlier builds are reused.

    Args:
        options: As in `DOCKERFILES`, with paths below `context`.
        name: The image's name.
        context: The copy of the repository.
    """
    file_index = options.index("--file") + 1
    build_options = [*options[:file_index], str(context / options[file_index]), *options[file_index + 1 :]]
    return Image(name, buildah("build", *OFFLINE, *build_options, "--tag", name, str(context)))


def make_bases() -> None:
    """Makes the base images if they are missing.

    Raises:
        SystemExit: If this machine lacks something. The message names it.
    """
    for tool in ("buildah", "debootstrap"):
        if not shutil.which(tool):
            raise SystemExit(f"there is no {tool} here: apt-get install buildah debootstrap")
    if os.geteuid() != 0:
        raise SystemExit("building images without a daemon needs root")
    if sys.version_info[:2] != (3, 12):
        raise SystemExit(
            "the images have Python 3.12, a copy of this one: make clean, then make setup PYTHON=python3.12"
        )
    WORK.mkdir(parents=True, exist_ok=True)
    bases = [ROOT / "tests" / "images" / "bases.sh", WORK, BOOT, sys.base_prefix]
    subprocess.run([*bases, *BUILDAH], check=True)


def main() -> None:
    make_bases()
    for name, options in DOCKERFILES.items():
        print(f"building {name}", flush=True)
        build(options, f"localhost/{name}")
    buildah("rm", "--all")  # of builds, and of runs that were killed


if __name__ == "__main__":
    main()
