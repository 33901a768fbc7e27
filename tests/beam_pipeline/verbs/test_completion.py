"""The scripts of `completion`, in real shells."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from beam_pipeline import __main__
from beam_pipeline.options.verbs import VERBS
from tests.completions import completed_by_bash, completed_by_fish, function_of_zsh


def script(shell: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert __main__.run("completion", [shell]) == 0
    path = folder / "_tokenmill"
    path.write_text(capsys.readouterr().out)
    return path


def test_bash_completes_verbs_options_values_and_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = script("bash", tmp_path, capsys)
    (tmp_path / "texts").mkdir()

    def completed(*words: str) -> set[str]:
        return completed_by_bash(path, "tokenmill", *words, folder=tmp_path)

    assert completed("") >= set(VERBS)
    assert completed("pre") == {"prepare"}
    assert completed("prepare", "--max_l") == {"--max_length"}
    assert completed("prepare", "--packing", "") == {"concat", "best_fit", "pad", "none"}
    assert completed("prepare", "--input", "te") == {"texts"}
    assert completed("verify", "te") == {"texts"}
    assert completed("completion", "z") == {"zsh"}


@pytest.mark.skipif(not shutil.which("fish"), reason="fish is not installed")
def test_fish_completes_verbs_options_and_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = script("fish", tmp_path, capsys)
    assert completed_by_fish(path, "tokenmill pre", folder=tmp_path) == {"prepare"}
    assert completed_by_fish(path, "tokenmill prepare --max_l", folder=tmp_path) == {"--max_length"}
    assert completed_by_fish(path, "tokenmill prepare --packing b", folder=tmp_path) == {"best_fit"}


@pytest.mark.skipif(not shutil.which("zsh"), reason="zsh is not installed")
def test_zsh_loads_its_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script("zsh", tmp_path, capsys)
    assert function_of_zsh(tmp_path, "tokenmill") == "_tokenmill"
