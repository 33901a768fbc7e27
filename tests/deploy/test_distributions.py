"""The metadata of the distributions agree with each other and with the code. `make release` builds and tries them."""

from __future__ import annotations

import ast
import importlib.util
import re
import zipfile
from pathlib import Path

import pytest
import tomllib
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import beam_pipeline
from beam_pipeline.support.extras import MODULES

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (".", "reader", "trainer")
PROJECTS = {
    folder: tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"] for folder in FOLDERS
}
MINORS = range(10, 14)

_spec = importlib.util.spec_from_file_location("build_distributions", ROOT / ".ci" / "build_distributions.py")
build_distributions = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(build_distributions)


def version(folder: str) -> str:
    if "version" in PROJECTS[folder]:
        return PROJECTS[folder]["version"]
    package = {".": "beam_pipeline", "trainer": "trainer/tpu_trainer"}[folder]
    return re.search(r'^__version__ = "(.+)"$', (ROOT / package / "__init__.py").read_text(), re.MULTILINE)[1]


def test_all_have_one_version_which_the_changelog_describes_and_their_requirements_include():
    assert {version(folder) for folder in FOLDERS} == {beam_pipeline.__version__}
    assert f"\n## {beam_pipeline.__version__} " in (ROOT / "CHANGELOG.md").read_text()
    assert f"\nversion: {beam_pipeline.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    for folder in (".", "trainer"):
        requirements = map(Requirement, PROJECTS[folder]["dependencies"])
        reader = next(entry for entry in requirements if entry.name == "tokenmill-reader")
        assert reader.specifier.contains(beam_pipeline.__version__)


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_classifiers_name_the_versions_of_python_that_it_takes(folder: str):
    named = [
        entry.rpartition(" :: ")[2]
        for entry in PROJECTS[folder]["classifiers"]
        if re.search(r":: 3\.\d+$", entry)
    ]
    assert named == [f"3.{minor}" for minor in MINORS]
    taken = SpecifierSet(PROJECTS[folder]["requires-python"])
    assert [minor for minor in range(8, 20) if taken.contains(f"3.{minor}.0")] == [*MINORS]


def test_each_extra_of_the_pipeline_is_checked_and_is_part_of_all():
    extras = PROJECTS["."]["optional-dependencies"]
    optional = {*MODULES, "transformers"}  # without transformers, a check is omitted
    assert extras.keys() == {*optional, "all", "dev"}
    assert Requirement(extras["all"][0]).extras == optional


def test_messages_and_docs_name_extras_that_exist():
    distributions = {
        project["name"]: project.get("optional-dependencies", {}) for project in PROJECTS.values()
    }
    sources = [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("*/README.md"),
        *ROOT.glob("beam_pipeline/**/*.py"),
        *ROOT.glob("trainer/tpu_trainer/**/*.py"),
        *ROOT.glob("reader/tokenmill_reader/**/*.py"),
    ]
    named = [
        (path, name, extra)
        for path in sources
        for name, extras in re.findall(r"\b(tokenmill(?:-\w+)?)\[([\w,-]+)\]", path.read_text())
        for extra in extras.split(",")
    ]
    assert len(named) > 2
    assert [entry for entry in named if entry[2] not in distributions.get(entry[1], {})] == []


def test_packages_of_extras_are_imported_late():
    optional = re.compile(
        r"(tensorflow|tensorflow_transform|tensorflow_metadata|tfx_bsl|array_record|datasets|pandas|requests"
        r"|google\.(cloud|api_core|auth)|apache_beam\.(io\.gcp|runners\.dataflow\.internal))(\.|$)"
    )
    early = []
    for path in (ROOT / "beam_pipeline").rglob("*.py"):
        for node in ast.parse(path.read_text()).body:  # not those in functions, nor under TYPE_CHECKING
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            early += [(path, name) for name in names if optional.match(name)]
    assert early == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_each_has_the_license_and_the_address_that_a_release_replaces(folder: str):
    assert (ROOT / folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    urls = PROJECTS[folder]["urls"]
    assert urls["Homepage"] == build_distributions.PLACEHOLDER
    assert all(url.startswith(build_distributions.PLACEHOLDER) for url in urls.values())


@pytest.mark.parametrize("folder", FOLDERS)
def test_links_of_a_released_readme_are_absolute_and_lead_to_files(folder: str):
    text = (ROOT / folder / "README.md").read_text()
    released = build_distributions.absolute_links(
        text, folder=folder, repository="https://host.example/o/r", version="1.2"
    )
    links = re.findall(r"\]\(([^)#\s]+)", released)
    assert links and all(link.startswith("https://") for link in links)
    for kind, path in re.findall(r"\]\(https://host\.example/o/r/(\w+)/v1\.2/([^)#\s]+)", released):
        assert (ROOT / path).exists(), path
        assert kind == ("raw" if path.endswith((".png", ".svg")) else "blob")


def test_compiled_code_with_paths_of_this_machine_is_not_published(tmp_path: Path):
    for content in (b"code", bytes(Path.home()) + b"/rows.c"):
        with zipfile.ZipFile(tmp_path / "a.whl", "w") as wheel:
            wheel.writestr("native/_rows.so", content)
        if content.startswith(b"code"):
            build_distributions.check_compiled_code(tmp_path)
    with pytest.raises(SystemExit, match=r"_rows\.so contains paths of this machine"):
        build_distributions.check_compiled_code(tmp_path)
