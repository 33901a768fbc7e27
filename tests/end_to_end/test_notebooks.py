"""The notebooks of the docs run, on a small corpus."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def program_of(notebook: Path, parameters: str) -> str:
    """The code of a notebook with other parameters, without the installation."""
    sources = []
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        tags = cell["metadata"].get("tags", [])
        if cell["cell_type"] == "code" and "install" not in tags:
            sources.append(parameters if "parameters" in tags else "".join(cell["source"]))
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
