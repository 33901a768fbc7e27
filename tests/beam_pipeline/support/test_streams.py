"""The standard streams: closed, full, broken, of other encodings, and with names that a terminal would interpret."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.beam_pipeline.runs import PROGRAM, arguments, defects

VERB = PROGRAM[:-1]


def shell(redirections: str, *command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a command with these redirections of a shell. The status of a pipeline is that of the command."""
    script = f'set -o pipefail; "$@" {redirections}'
    return subprocess.run(
        ["bash", "-c", script, "bash", *map(str, command)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


@pytest.mark.parametrize("redirections", ["<&- >&- 2>&-", ">/dev/full 2>/dev/full", "2>&1 | true"])
def test_a_dataset_does_not_depend_on_the_streams(
    redirections: str, corpus: Path, tokenizer_folder: Path, tmp_path: Path
):
    command = arguments(corpus, tokenizer_folder, tmp_path / "out", "--max_length", "32")
    assert shell(redirections, *PROGRAM, *command).returncode == 0
    assert defects(tmp_path / "out") == []


@pytest.mark.parametrize("verb", ["verify", "inspect"])
def test_what_the_user_asked_for_is_not_lost_silently(verb: str, dataset: Path):
    result = shell(">/dev/full", *VERB, verb, dataset)
    message = "[Errno 28] No space left on device: 'standard output'\n"
    assert (result.returncode, result.stderr) == (1, message)
    closed_by_reader = shell("| true", *VERB, verb, dataset)
    assert (closed_by_reader.returncode, closed_by_reader.stderr) == (1, "")
    for redirections in (">&-", "2>&-", "2>/dev/full", "<&- >&- 2>&-"):
        assert shell(redirections, *VERB, verb, dataset).returncode == 0


def test_a_summary_that_is_lost_is_mentioned(dataset: Path, tmp_path: Path):
    command = ["convert", dataset, "--output_format", "parquet", "--output", tmp_path / "out"]
    result = shell(">/dev/full", *VERB, *command)
    assert result.returncode == 0
    assert result.stderr.endswith("\nstandard output: No space left on device: what follows is lost\n")


def test_characters_that_the_encoding_lacks_are_escaped(dataset: Path):
    command = [*VERB, "inspect", dataset, "--record", "train:0:0", "--trace", "never"]
    utf8_result = shell("", *command, PYTHONIOENCODING="utf-8")
    assert not utf8_result.stdout.isascii()
    for encoding in ("ascii", "ascii:strict"):
        escaped_result = shell("", *command, PYTHONIOENCODING=encoding)
        assert (escaped_result.returncode, escaped_result.stderr) == (0, "")
        assert "\\u" in escaped_result.stdout


HOSTILE = "\x1b]0;title\x07\x9b31m\r\u202e"
ESCAPED = r"\x1b]0;title\x07\x9b31m\x0d\u202e"


def test_a_terminal_interprets_nothing_of_a_name(tmp_path: Path):
    folder = tmp_path / HOSTILE
    folder.mkdir()
    (folder / "train").mkdir()
    (folder / "train" / "manifest.json").write_text("{")
    for command in (["verify", folder], ["inspect", folder], ["inspect", "o", "--most", HOSTILE]):
        result = shell("", *VERB, *command)
        text = result.stdout + result.stderr
        assert ESCAPED in text or "\\x1b]0;" in text
        assert not set("\x1b\x07\x9b\r\u202e") & set(text)


def test_a_name_cannot_imitate_a_line(tmp_path: Path):
    folder = tmp_path / "a\nout/train: whole"
    (folder / "train").mkdir(parents=True)
    (folder / "train" / "manifest.json").write_text("{")
    assert "\nout/train: whole" not in shell("", *VERB, "verify", folder).stdout


def test_a_message_is_not_longer_than_a_screen_and_keeps_its_ends(tmp_path: Path):
    name = "x" * 5000
    for command in (["inspect", name, "--grep", "y"], ["inspect", "o", "--most", name]):
        result = shell("", *VERB, *command)
        assert result.returncode in (1, 2)
        assert len(result.stderr) < 2500 and "…" in result.stderr


def test_the_bars_of_other_libraries_move_the_cursor():
    code = (
        "import sys; from tokenmill_reader.console import streams; streams.harden(shows=True)\n"
        "sys.stderr.write('\\r 50%\\x1b[A\\x1b[31mred\\x1b[0m\\x1b]0;t\\x07')\n"
        "sys.stderr.write('\\x1b[A\\rlog\\x1b[8m\\n')\n"
        "streams.print_data('\\x1b'); print('\\x1b')"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert result.stderr == b"\r 50%\x1b[A\x1b[31mred\x1b[0m\\x1b]0;t\\x07\\x1b[A\\x0dlog\\x1b[8m\n"
    assert result.stdout == b"\x1b\n\\x1b\n"


def test_a_terminal_interprets_nothing_of_what_workers_say(tokenizer_folder: Path, tmp_path: Path):
    source = tmp_path / f"{HOSTILE}.jsonl"
    source.write_text('{"text": "a"}\n{\n')
    workers = ["--direct_running_mode", "multi_processing", "--direct_num_workers", "2"]
    command = arguments(source, tokenizer_folder, tmp_path / "out", *workers)
    result = shell("", *PROGRAM, *command)
    assert result.returncode == 1
    assert f"{ESCAPED}.jsonl, line 2 (byte 14)" in result.stderr.splitlines()[-1]
    assert not set("\x1b\x07\x9b\u202e") & set(result.stderr)
