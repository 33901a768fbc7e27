"""README and docs: every link leads somewhere, and every command line names verbs and options that exist.

`make docs` checks the links of docs/.
"""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from beam_pipeline import __file__ as package

ROOT = Path(package).parents[1]
READMES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "trainer" / "README.md"]
PAGES = [*READMES, *sorted((ROOT / "docs").rglob("*.md"))]
PROGRAMS = {"tokenmill": "beam_pipeline", "tokenmill-trainer": "tpu_trainer"}


@cache
def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives the page's headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", READMES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if re.match(r"https?://|mailto:", target):
            continue
        name, _, anchor = target.partition("#")
        linked = (page.parent / name).resolve() if name else page
        assert linked.exists(), f"{page.name}: {target}"
        if anchor and linked.suffix == ".md":
            assert anchor in anchors(linked), f"{page.name}: {target}"


def commands(page: Path) -> list[list[str]]:
    """[program, verb, word, …] of each command line of ours in the page's blocks."""
    text = re.sub(r"\\\n\s*", " ", page.read_text(encoding="utf-8"))
    command_lines = []
    for block in re.findall(r"^```\w*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            line = re.sub(r"\S*python\S* -m beam_pipeline ", "tokenmill ", line)
            line = re.sub(r"\S*python\S* -m tpu_trainer ", "tokenmill-trainer ", line)
            match = re.match(r"\$? ?(?:\w+=\S+ )*(tokenmill(?:-trainer)? .*?)(?: > \S+)?$", line)
            if match:
                command_lines.append(
                    [word for word in shlex.split(match[1], comments=True) if word not in ("…", "\\")]
                )
    return command_lines


@cache
def options_of(program: str, verb: str, trainer_python: Path) -> set[str]:
    """The options that a verb's help lists."""
    python = sys.executable if program == "tokenmill" else trainer_python
    done = subprocess.run([python, "-m", PROGRAMS[program], verb, "--help"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    own_options = set(re.findall(r"--[\w.\-]+", done.stdout))
    return own_options | beam_options() if "passed to Beam" in done.stdout else own_options


def beam_options() -> set[str]:
    parser = argparse.ArgumentParser(conflict_handler="resolve")
    for group in PipelineOptions.__subclasses__():
        group._add_argparse_args(parser)
    return set(parser._option_string_actions)


def test_every_command_line_names_verbs_and_options_that_exist(trainer_python: Path) -> None:
    checked = 0
    for page in PAGES:
        for program, verb, *words in commands(page):
            known_options = options_of(program, verb, trainer_python)
            for word in words:
                option = word.partition("=")[0]
                if option.startswith("--"):
                    # model.config takes any key.
                    assert option in known_options or option.startswith("--model.config"), (
                        f"{page.name}: {verb} {option}"
                    )
            checked += 1
    assert checked >= 10
