"""The two programs have separate environments, neither contains the other, and only files pass between them."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from beam_pipeline import __file__ as package

ROOT = Path(package).parents[1]

# The distributions and packages that must not be in an environment.
NOT_IN_PIPELINE = {"tpu_trainer", "tokenmill-trainer"}
NOT_IN_TRAINER = {
    "beam_pipeline",
    "tokenmill",
    "apache_beam",
    "apache-beam",
    "tensorflow_transform",
    "tfx_bsl",
}

_FIND = """
import importlib.metadata, importlib.util, sys
for name in sys.argv[1:]:
    if "-" not in name and importlib.util.find_spec(name):
        print(name)
    try:
        importlib.metadata.distribution(name)
        print(name)
    except importlib.metadata.PackageNotFoundError:
        pass
"""


def importable(python: Path, names: set[str], folder: Path) -> str:
    """Returns those of `names` that an environment's Python can import, from an otherwise empty folder."""
    command = [python, "-c", _FIND, *sorted(names)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout


def test_pipeline_environment_holds_no_trainer(tmp_path: Path) -> None:
    assert importable(Path(sys.executable), {"beam_pipeline"}, tmp_path)  # the look-up itself works
    assert importable(Path(sys.executable), NOT_IN_PIPELINE, tmp_path) == ""


def test_trainer_environment_holds_no_pipeline(trainer_python: Path, tmp_path: Path) -> None:
    assert importable(trainer_python, {"tpu_trainer"}, tmp_path)
    assert importable(trainer_python, NOT_IN_TRAINER, tmp_path) == ""


def imported(source: Path) -> set[str]:
    """Returns the top-level packages that a module imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(source.read_bytes())):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.partition(".")[0])
    return names


@pytest.mark.parametrize(
    ("folder", "forbidden"),
    [
        ("beam_pipeline", {"tpu_trainer", "demo"}),
        ("trainer/tpu_trainer", {"beam_pipeline", "apache_beam", "demo"}),
        ("demo", {"tpu_trainer"}),
    ],
)
def test_no_module_imports_the_other_program(folder: str, forbidden: set[str]) -> None:
    modules = sorted((ROOT / folder).rglob("*.py"))
    assert modules
    assert {
        str(module): imported(module) & forbidden for module in modules if imported(module) & forbidden
    } == {}
