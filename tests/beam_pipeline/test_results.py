"""What the verbs print: JSON documents with --json, and nothing but results and errors with --quiet."""

from __future__ import annotations

import json
import os
import pty
import shlex
import shutil
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pytest

from beam_pipeline import __main__
from beam_pipeline.options.command_line import parse
from beam_pipeline.options.verbs import VERBS
from tests.beam_pipeline.runs import arguments

PROGRAM = [sys.executable, "-m", "beam_pipeline"]


def document(capsys: pytest.CaptureFixture[str], verb: str, *argv: str, status: int = 0) -> dict[str, Any]:
    """Runs a verb and returns the document that it prints; all of stdout is one line."""
    capsys.readouterr()
    assert __main__.run(verb, [*argv, "--json"]) == status
    captured = capsys.readouterr()
    assert captured.out.count("\n") == 1
    assert bool(captured.err) >= bool(status)
    return json.loads(captured.out)


def test_every_verb_prints_one_document(
    corpus: Path, tokenizer_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    prepare = arguments(corpus, tokenizer_folder, out, "--max_length", "32")
    estimate = document(capsys, "prepare", *prepare, "--estimate")
    made = document(capsys, "prepare", *prepare)
    train = made["splits"]["train"]
    assert (made["finished"], made["output"], made["report"]) == (True, str(out), f"{out}/report.html")
    assert estimate["documents"] == train["documents"]
    assert abs(estimate["tokens"] - train["tokens"]) <= 1
    assert estimate["splits"]["train"]["shards"] == train["shards"]
    assert document(capsys, "prepare", *prepare, "--resume") == made | {"seconds": None}
    summary = document(capsys, "inspect", str(out))
    assert summary["splits"] == made["splits"]
    record = document(capsys, "inspect", str(out), "--record", "train:0:0", "--tokens")
    assert record["tokens"] == sum(len(stretch["ids"]) for stretch in record["stretches"])
    text = record["stretches"][0]["text"]
    matches = document(capsys, "inspect", str(out), "--grep", text.split()[1], "--most", "1")["matches"]
    assert set(matches[0]) == {"split", "shard", "record", "text"}
    assert document(capsys, "inspect", str(out), "--grep", "\x1b", status=1)["matches"] == []
    folders = [{"folder": f"{out}/train", "defects": [], "notes": []}]
    assert document(capsys, "verify", str(out)) == {"dataset": str(out), "defects": 0, "folders": folders}
    assert document(capsys, "report", str(out)) == {"dataset": str(out), "report": f"{out}/report.html"}
    converted = document(
        capsys, "convert", str(out), "--output_format", "parquet", "--output", str(tmp_path / "new")
    )
    assert converted["splits"] == made["splits"]
    (out / "train" / "statistics.json").unlink()
    broken = document(capsys, "verify", str(out), status=1)
    assert broken["defects"] == len(broken["folders"][0]["defects"]) == 1
    trained = document(
        capsys,
        "train-tokenizer",
        "--input",
        str(corpus),
        "--vocab_size",
        "300",
        "--output",
        str(tmp_path / "t"),
    )
    assert (trained["output"], trained["vocab_size"]) == (str(tmp_path / "t"), 300)


def test_analyses_are_in_the_document(
    dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(dataset, tmp_path / "out")
    analyzed = document(capsys, "analyze", str(copy))
    assert analyzed["splits"]["train"]["document_tokens"].keys() == {"mean", "median"}


def test_prepare_ends_with_the_report_and_commands_for_the_dataset(
    corpus: Path, tokenizer_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "my dataset"
    prepare = arguments(corpus, tokenizer_folder, out, "--splits", "train=0.5,validation=0.5")
    assert __main__.run("prepare", prepare) == 0
    steps = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.split("\n\n")[-1].splitlines())
    assert list(steps) == ["report", "browse", "check", "train"]
    assert Path(steps["report"]).is_file()
    for name in ("browse", "check"):
        program, verb, *words = shlex.split(steps[name])
        assert program == "tokenmill"
        assert parse(VERBS[verb], words).config.dataset == str(out)
    config = "tiny-mlm"  # the tokenizer has a mask token
    assert shlex.split(steps["train"])[:8] == [
        *("tokenmill-trainer", "fit", "--config", config, "--data.train", f"{out}/train"),
        *("--data.validation", f"{out}/validation"),
    ]
    assert (Path(__file__).parents[2] / f"trainer/tpu_trainer/configs/{config}.yaml").is_file()
    without_mask = (
        (tokenizer_folder / "tokenizer_config.json").read_text().replace('"mask_token": "<mask>", ', "")
    )
    shutil.copytree(tokenizer_folder, tmp_path / "tokenizer")
    (tmp_path / "tokenizer/tokenizer_config.json").write_text(without_mask)
    assert __main__.run("prepare", arguments(corpus, tmp_path / "tokenizer", tmp_path / "causal")) == 0
    assert " --config tiny-clm --data.train " in capsys.readouterr().out


def test_a_usage_error_is_on_stderr_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.run("verify", ["--json"]) == 2
    assert capsys.readouterr() == ("", "verify: missing: OUT; see --help\n")


def test_a_closed_pipe_ends_a_verb_quietly(dataset: Path) -> None:
    command = [*PROGRAM, "inspect", str(dataset), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


def on_a_terminal(*command: str, **environment: str) -> str:
    """Runs a command whose stderr alone is a terminal. Returns what it shows there."""
    terminal, end = pty.openpty()
    termios.tcsetwinsize(end, (24, 100))
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL, stderr=end, env=os.environ | environment
    ) as process:
        os.close(end)
        shown = b""
        try:
            while piece := os.read(terminal, 4096):
                shown += piece
        except OSError:
            pass  # the program has closed it
    assert process.returncode == 0
    os.close(terminal)
    return shown.decode()


def test_bars_are_only_on_a_terminal_that_can_show_them_and_nothing_if_quiet(
    corpus: Path, tokenizer_folder: Path, tmp_path: Path
) -> None:
    def shown(name: str, *options: str, **environment: str) -> str:
        command = [*PROGRAM, "prepare", *arguments(corpus, tokenizer_folder, tmp_path / name, *options)]
        return on_a_terminal(*command, **environment)

    bars, plain = shown("a", TERM="xterm"), shown("b", TERM="dumb")
    assert "\r" in bars.replace("\r\n", "\n")
    assert "\r" not in plain.replace("\r\n", "\n")
    assert "\x1b" not in plain
    assert "tokenize: " in plain
    assert shown("c", "--quiet", TERM="xterm") == ""
