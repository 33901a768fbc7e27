"""Asks real shells what they complete by a script of `completion`."""

from __future__ import annotations

import subprocess
from pathlib import Path

# What bash itself does when a user presses Tab after these words.
_BASH = """
source "$1"; shift
function=$(complete -p "$1" | sed 's/.*-F \\([^ ]*\\).*/\\1/')
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
$function "$1" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


def completed_by_bash(script: Path, *words: str, folder: Path) -> set[str]:
    """Returns the completions of the last word of a command line."""
    command = ["bash", "--norc", "-c", _BASH, "bash", str(script), *words]
    result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder)
    assert result.stderr == ""
    return set(result.stdout.split())


def completed_by_fish(script: Path, line: str, *, folder: Path) -> set[str]:
    """Returns the completions of a command line."""
    command = ["fish", "--no-config", "-c", f"source {script}; complete -C {line!r}"]
    result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder)
    return {each.partition("\t")[0] for each in result.stdout.splitlines()}


def function_of_zsh(folder: Path, command: str) -> str:
    """Loads a folder of scripts in zsh, and returns the function that completes a command."""
    code = f"fpath+=({folder}); autoload -U compinit && compinit -u -D; autoload +X _{command}; echo $_comps[{command}]"
    result = subprocess.run(["zsh", "-f", "-c", code], capture_output=True, text=True, check=True)
    assert result.stderr == ""
    return result.stdout.strip()
