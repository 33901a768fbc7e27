"""The notebooks of the docs run, on a small corpus."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


# What does not run in a test: installations, the TPU's compiler, and what needs IPython or PyTorch.
NOT_RUN = {"install", "tpu", "notebook", "torch"}


def program_of(notebook: Path, parameters: str) -> str:
    """The code of a notebook with other parameters. Lines that begin with ! run in a shell, as in IPython."""
    sources = ["from subprocess import run"]
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        tags = set(cell["metadata"].get("tags", []))
        if cell["cell_type"] == "code" and not tags & NOT_RUN:
            source = parameters if "parameters" in tags else "".join(cell["source"]).replace("\\\n", "")
            sources.append(re.sub(r"(?m)^!(.*)$", r"run(f'''\1''', shell=True, check=True)", source))
    return "\n".join(sources)


def test_a_dataset_in_ten_minutes(generated: Path, tmp_path: Path) -> None:
    parameters = f"input_files = ({str(generated / '*.txt')!r},)\nfolder = 'out'\nvocab_size = 500"
    program = program_of(ROOT / "docs" / "notebooks" / "dataset-in-ten-minutes.ipynb", parameters)
    program += (
        "\nassert batch['input_ids'].shape == (8, 128)\nprint(train._repr_html_(), dataset._repr_html_())"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("<table>") == 2


def test_roberta_on_a_free_tpu(generated: Path, trainer_python: Path, tmp_path: Path) -> None:
    parameters = f"""
text = "--input {generated / "*.txt"}"
sentence = "A <mask>."
vocab_size = 500
length = 64
config = "tiny-mlm"
options = "--train.batch_size 8 --train.steps 4 --schedule.warmup_steps 1"
"""
    programs = [str(Path(sys.executable).parent), str(trainer_python.parent), os.environ["PATH"]]
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            program_of(ROOT / "docs" / "notebooks" / "roberta-on-a-free-tpu.ipynb", parameters),
        ],
        cwd=tmp_path,
        env=os.environ | {"PATH": os.pathsep.join(programs)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "model" / "model.safetensors").exists()
    assert "A <mask>." in done.stdout
