"""The worked examples in docstrings."""

import doctest
import importlib
from pathlib import Path

import pytest

import beam_pipeline
import tokenmill_reader

PACKAGES = [Path(package.__file__).parent for package in (beam_pipeline, tokenmill_reader)]
MODULES = sorted(
    ".".join(path.relative_to(package.parent).with_suffix("").parts)
    for package in PACKAGES
    for path in package.rglob("*.py")
    if ">>> " in path.read_text()
)


@pytest.mark.parametrize("name", MODULES)
def test_worked_examples_give_what_they_show(name):
    failures, examples = doctest.testmod(importlib.import_module(name))
    assert examples and not failures
