"""Benchmarks are run by hand. These tests check only their imports and options."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from beam_pipeline import __file__ as package

ROOT = Path(package).parents[1]
TRAINER = ROOT / "trainer" / ".venv" / "bin" / "python"
SCRIPTS = sorted(
    path
    for path in (ROOT / "benchmarks").rglob("*.py")
    if "argparse" in (text := path.read_text()) and "__main__" in text  # not what scripts share
)
# These import other programs, which are not dependencies.
NOT_INSTALLED = {
    "cpu_step.py",
    "datatrove_decontamination.py",
    "datatrove_filters.py",
    "datatrove_minhash.py",
    "datatrove_sentences.py",
    "datatrove_tokenizer.py",
    "llm_foundry_finetuning.py",
    "megatron_fast.py",
    "trl_sft.py",
}

# One process per environment, since importing TensorFlow takes seconds.
_ASK_FOR_HELP = """
import runpy, sys
for script in sys.argv[1:]:
    sys.argv = [script, "--help"]
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        assert not end.code, script
    else:
        raise AssertionError(f"{script} ignores --help")
"""


def runs_in_trainer(script: Path) -> bool:
    """Returns whether the script's docstring runs it with the trainer's Python."""
    return re.search(r"^ +trainer/\.venv", script.read_text(), re.MULTILINE) is not None


@pytest.mark.parametrize(("python", "in_trainer"), [(sys.executable, False), (TRAINER, True)])
def test_every_benchmark_imports_what_it_needs_and_lists_its_options(python, in_trainer: bool):
    scripts = [s for s in SCRIPTS if s.name not in NOT_INSTALLED and runs_in_trainer(s) == in_trainer]
    assert len(scripts) >= 4
    done = subprocess.run(
        [python, "-c", _ASK_FOR_HELP, *scripts],
        env=os.environ | {"PYTHONPATH": str(ROOT / "benchmarks"), "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("usage: ") == len(scripts)
