"""The worked examples in docstrings."""

import doctest
import importlib
from pathlib import Path

import pytest

import beam_pipeline

ROOT = Path(beam_pipeline.__file__).parents[1]
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in ROOT.glob("beam_pipeline/**/*.py")
    if ">>> " in path.read_text()
)


@pytest.mark.parametrize("name", MODULES)
def test_worked_examples_give_what_they_show(name):
    failures, examples = doctest.testmod(importlib.import_module(name))
    assert examples and not failures
