"""Bad input causes a clear error and the right exit status, and leaves no dataset behind."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from beam_pipeline import __file__ as package

ROOT = Path(package).parents[1]
NOBODY = 65534

WRONG_USAGE, BAD_DATA = 2, 1


def nothing_written(output: Path) -> bool:
    return not output.exists()


def no_dataset(output: Path) -> bool:
    """Returns whether the folder has neither shards nor manifests."""
    names = [path.name for path in output.rglob("*")]
    return not any(name == "manifest.json" or name.endswith(".tfrecord") for name in names)


@pytest.fixture
def prepare(pipeline, generated_tokenizer: Path, tmp_path: Path):
    """Returns a function that runs `prepare` on an input and writes to tmp_path/out."""

    def run(*words: object, tokenizer: Path = generated_tokenizer):
        return pipeline(
            *("prepare", "--tokenizer", tokenizer, "--output", tmp_path / "out", "--max_length", 32),
            *("--unit_bytes", 1000, "--input", *words),
        )

    return run


def test_input_and_tokenizer_that_are_not_there(prepare, generated: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    result = prepare(tmp_path / "*.txt")
    assert (result.status, f"{tmp_path}/*.txt: no file matches" in result.err) == (WRONG_USAGE, True)
    result = prepare(generated / "lines.txt", tokenizer=tmp_path / "empty")
    assert (result.status, str(tmp_path / "empty") in result.err) == (WRONG_USAGE, True)
    assert nothing_written(tmp_path / "out")


@contextlib.contextmanager
def without_privileges() -> Iterator[None]:
    """Drops root's privileges for a while, since root may read everything."""
    user = os.geteuid()
    if user:
        yield
        return
    os.setresuid(NOBODY, NOBODY, user)
    try:
        yield
    finally:
        os.setresuid(user, user, user)


def test_unreadable_file(prepare, generated_tokenizer: Path, tmp_path: Path) -> None:
    # Imports what the verb imports, which another user may not be able to read.
    assert prepare(tmp_path / "none.txt").status == WRONG_USAGE
    with tempfile.TemporaryDirectory() as folder:  # pytest's own folders are closed to other users
        Path(folder).chmod(0o755)
        tokenizer = shutil.copytree(generated_tokenizer, Path(folder, "tokenizer"))
        secret = Path(folder, "secret.txt")
        secret.write_text("words\n")
        secret.chmod(0)
        with without_privileges():
            result = prepare(secret, tokenizer=tokenizer)
    assert result.status == WRONG_USAGE
    assert f"{secret} cannot be read" in result.err
    assert nothing_written(tmp_path / "out")


# Name of the file, its bytes, and what the message must say besides the file's name.
BAD_FILES = {
    "invalid UTF-8": ("in.txt", b"good\n" * 700 + b"caf\xe9 here\n", ["line 701", "invalid UTF-8", "0xe9"]),
    "broken JSON": (
        "in.jsonl",
        b'{"text": "good"}\n' * 300 + b'{"text": "bad\n',
        ["line 301", "broken JSON"],
    ),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_record(case: str, prepare, tmp_path: Path) -> None:
    name, content, message_parts = BAD_FILES[case]
    (tmp_path / name).write_bytes(content)
    result = prepare(tmp_path / name)
    assert result.status == BAD_DATA
    for words in [str(tmp_path / name), *message_parts]:
        assert words in result.err
    assert "Traceback" not in result.err
    assert no_dataset(tmp_path / "out")


def test_mended_input_goes_where_the_bad_one_failed(prepare, tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text('{"text": "good words"}\n{"text": \n')
    assert prepare(path).status == BAD_DATA
    path.write_text('{"text": "good words"}\n')
    result = prepare(path)
    assert result.status == 0, result.err
    manifest = json.loads((tmp_path / "out" / "train" / "manifest.json").read_text())
    assert manifest["totals"]["documents"] == 1


def test_the_command_exits_with_a_status_and_a_message_without_traceback(
    generated_tokenizer: Path, tmp_path: Path
) -> None:
    """The other tests run the verb within this process; this one runs the command."""
    (tmp_path / "in.jsonl").write_text('{"text": "good"}\n{"text\n')
    command = [sys.executable, "-m", "beam_pipeline", "prepare", "--tokenizer", generated_tokenizer]
    command += ["--input", tmp_path / "in.jsonl", "--output", tmp_path / "out"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == BAD_DATA
    assert f"prepare: {tmp_path}/in.jsonl, line 2" in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    assert no_dataset(tmp_path / "out")
