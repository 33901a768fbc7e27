"""Builds the sdists and wheels of tokenmill, tokenmill-reader and tokenmill-trainer as an index takes them.

    .venv/bin/python .ci/build_distributions.py dist --repository https://github.com/NAME/tokenmill

They contain what is committed, and nothing else. The sources name the repository by a placeholder; here it becomes the
real address, and the relative links of the READMEs become links to this version's files there.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path, PurePosixPath
from posixpath import normpath

ROOT = Path(__file__).resolve().parents[1]
PLACEHOLDER = "https://github.com/OWNER/tokenmill"
PROJECTS = ("reader", ".", "trainer")
_IMAGES = (".png", ".svg")
_RELATIVE_LINK = re.compile(r"\]\((?!https?://|#|mailto:)([^)#\s]+)([^)\s]*)\)")


def absolute_links(text: str, *, folder: str, repository: str, version: str) -> str:
    """Returns a README whose relative links lead to the files of a version in the repository.

    Args:
        text: Markdown.
        folder: The README's folder, relative to the root of the repository.
        repository: The repository's address.
        version: The version, whose tag begins with `v`.
    """

    def replace(link: re.Match[str]) -> str:
        path = normpath((PurePosixPath(folder) / link[1]).as_posix())
        kind = "raw" if path.endswith(_IMAGES) else "blob"
        return f"]({repository}/{kind}/v{version}/{path}{link[2]})"

    return _RELATIVE_LINK.sub(replace, text)


def version_of(root: Path) -> str:
    """Returns the version that the pipeline's package states."""
    text = (root / "beam_pipeline" / "__init__.py").read_text(encoding="utf-8")
    return re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)[1]


def stage(folder: Path, repository: str) -> None:
    """Writes the committed files into a folder, with the repository's address instead of the placeholder."""
    with tempfile.TemporaryFile() as archive:
        subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, stdout=archive, check=True)
        archive.seek(0)
        subprocess.run(["tar", "-x", "-C", folder], stdin=archive, check=True)
    version = version_of(folder)
    for project in PROJECTS:
        readme, metadata = folder / project / "README.md", folder / project / "pyproject.toml"
        text = readme.read_text(encoding="utf-8").replace(PLACEHOLDER, repository)
        readme.write_text(
            absolute_links(text, folder=project, repository=repository, version=version), encoding="utf-8"
        )
        metadata.write_text(
            metadata.read_text(encoding="utf-8").replace(PLACEHOLDER, repository), encoding="utf-8"
        )


def build(source: Path, output: Path) -> None:
    """Builds each sdist, and from it the wheel: with the locked setuptools, and with the commit's time."""
    commit = subprocess.run(
        ["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    environment = {**os.environ, "SOURCE_DATE_EPOCH": commit.stdout.strip()}
    if sys.platform == "linux":  # a Python of pyenv links its own folder of this machine into compiled code
        environment["LDSHARED"] = "cc -shared"
    constraints = ["--build-constraints", ROOT / "requirements-release.lock", "--require-hashes"]
    for project in PROJECTS:
        command = ["uv", "build", "--quiet", *constraints, "--out-dir", output, source / project]
        subprocess.run(command, env=environment, check=True)


def name_platforms(output: Path) -> None:
    """Gives a Linux wheel the name of the oldest platform that its compiled code runs on. An index takes no other."""
    for wheel in output.glob("*-linux_*.whl"):
        repair = [sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", output, wheel]
        subprocess.run(repair, check=True)
        wheel.unlink()


def check_compiled_code(output: Path) -> None:
    """Ends with an error if compiled code contains paths of this machine, such as those of its sources."""
    home = os.fsencode(Path.home()) + b"/"
    for wheel in output.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if name.endswith(".so") and home in archive.read(name):
                    sys.exit(f"{wheel}: {name} contains paths of this machine")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("output", type=Path, help="folder for the files; an existing one must be empty")
    parser.add_argument(
        "--repository", default=PLACEHOLDER, help="the repository's address; default: %(default)s"
    )
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    if any(args.output.iterdir()):
        parser.error(f"{args.output} is not empty: delete it, or choose another folder")
    if not re.fullmatch(r"https://[\w.-]+(/[\w.-]+)+", args.repository):
        parser.error(f"--repository {args.repository}: must be an address such as {PLACEHOLDER}")
    with tempfile.TemporaryDirectory() as folder:
        stage(Path(folder), args.repository)
        build(Path(folder), args.output)
    name_platforms(args.output)
    check_compiled_code(args.output)


if __name__ == "__main__":
    main()
