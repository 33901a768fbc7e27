"""The bytes of a dataset do not depend on the runner: this process, or two workers that divide the units."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from beam_pipeline import __file__ as package

ROOT = Path(package).parents[1]


def files(folder: Path) -> dict[str, bytes]:
    """Returns the bytes of every file below a folder, by name."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_two_worker_processes_write_what_one_process_writes(
    generated: Path, generated_tokenizer: Path, generated_dataset: Path, tmp_path: Path
) -> None:
    # The options of `generated_dataset`, with its inputs in another order and with other workers.
    command = [
        *(sys.executable, "-m", "beam_pipeline", "prepare"),
        *("--input", generated / "records.jsonl", generated / "*.txt"),
        *("--tokenizer", generated_tokenizer, "--output", tmp_path / "out"),
        *("--max_length", "64", "--shard_size", "100", "--unit_bytes", "7000"),
        *("--direct_running_mode", "multi_processing", "--direct_num_workers", "2"),
    ]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    expected = files(generated_dataset)
    assert sum(name.endswith(".tfrecord") for name in expected) > 3
    assert files(tmp_path / "out") == expected
