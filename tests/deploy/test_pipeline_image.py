"""Checks of deploy/pipeline.Dockerfile without building it."""

from __future__ import annotations

import fnmatch
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "deploy" / "pipeline.Dockerfile").read_text()


def instructions() -> list[tuple[str, str]]:
    """Returns (instruction, arguments), without comments and with continued lines joined."""
    lines = "\n".join(line for line in DOCKERFILE.splitlines() if not line.lstrip().startswith("#"))
    joined_lines = re.sub(r"\\\n", " ", lines)
    return [tuple(line.split(None, 1)) for line in joined_lines.splitlines() if line.strip()]


def is_ignored(path: str) -> bool:
    """Whether .dockerignore excludes a file. The last matching pattern decides."""
    out = False
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.removeprefix("!")
        if not pattern or pattern.startswith("#"):
            continue
        parents = ["/".join(path.split("/")[:count]) for count in range(1, path.count("/") + 2)]
        if any(
            fnmatch.fnmatch(part, pattern.removeprefix("**/")) or fnmatch.fnmatch(part, pattern)
            for part in parents
        ):
            out = not line.startswith("!")
    return out


def test_copied_files_exist_and_are_not_ignored():
    source_groups = [
        words.split()[:-1] for name, words in instructions() if name == "COPY" and "--from" not in words
    ]
    sources = [source for group in source_groups for source in group]
    required = {"requirements.lock", "beam_pipeline", "tokenmill", "reader", "pyproject.toml", "README.md"}
    assert required <= set(sources)
    for source in sources:
        assert (ROOT / source).exists(), source
        assert not is_ignored(source), source


@pytest.mark.parametrize(
    "path", [".git/config", "tests/conftest.py", "beam_pipeline/__pycache__/x.pyc", "demo/run.sh"]
)
def test_unneeded_files_are_ignored(path: str):
    assert is_ignored(path)


def test_the_base_has_the_locks_version_of_beam():
    locked_version = re.search(
        r"^apache-beam==(\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE
    )[1]
    assert f"ARG BEAM={locked_version}\n" in DOCKERFILE


def test_nothing_is_installed_at_launch_and_the_worker_is_the_entry_point():
    names = [name for name, _ in instructions()]
    words = dict(instructions())
    assert "FLEX_TEMPLATE_PYTHON_REQUIREMENTS_FILE" not in DOCKERFILE
    assert "FLEX_TEMPLATE_PYTHON_SETUP_FILE" not in DOCKERFILE
    assert words["ENTRYPOINT"] == '["/opt/apache/beam/boot"]'
    assert names.count("ENTRYPOINT") == 1
    installs = [text for name, text in instructions() if name == "RUN" and "pip install" in text]
    assert len(installs) == 2
    assert all("--require-hashes" in text or "--no-deps --no-index" in text for text in installs)


def test_the_templates_program_is_where_the_launcher_looks_and_runs():
    target = re.search(r"FLEX_TEMPLATE_PYTHON_PY_FILE=(\S+)", DOCKERFILE)[1]
    assert target == "/opt/tokenmill/template_main.py"
    assert ("COPY", "deploy/template_main.py /opt/tokenmill/") in instructions()
    program = [sys.executable, str(ROOT / "deploy" / "template_main.py"), "--resume=perhaps"]
    run = subprocess.run(program, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (2, "prepare: --resume perhaps: must be true or false\n")


def test_all_files_of_the_packages_are_installed(tmp_path: Path):
    """The wheel contains every file of the packages except bytecode and sources in C."""
    build = ["-c", "import setuptools; setuptools.setup()", "--quiet", "build"]
    build += ["--build-base", tmp_path, "--build-lib", tmp_path / "lib"]
    subprocess.run([sys.executable, *build], cwd=ROOT, check=True, capture_output=True)
    source_paths = {
        str(path.relative_to(ROOT))
        for package in ("beam_pipeline", "tokenmill")
        for path in (ROOT / package).rglob("*")
        if path.is_file()
    }
    packaged = {
        str(path.relative_to(tmp_path / "lib")) for path in (tmp_path / "lib").rglob("*") if path.is_file()
    }
    assert {
        path for path in source_paths if "__pycache__" not in path and not path.endswith((".c", ".h"))
    } == packaged
